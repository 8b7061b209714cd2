"""gRPC doors beside the HTTP ones: KServe's inference protocol and RTP-LLM's model service.

Needs the extra `grpc`; nothing else imports these modules before a flag asks for them.
"""
