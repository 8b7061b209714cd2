"""The proxy: speaks OpenAI's API and drives each request through encode, prefill and decode.

upstream   HTTP to workers
fleet      the workers: who is up, who may be asked
placement  where the stages of a request run
tokens     requests rendered here, for Triptych workers
relay      requests passed on as they are, for vLLM and compatible workers
"""
