"""Messages of gRPC services. `*_pb2` are made from the .proto files by scripts/grpc_modules.sh."""
