"""The proxy: speaks OpenAI's API and drives each request through encode, prefill and decode.

config        flags, environment and file → one frozen configuration
app           the HTTP application
gateway       what every route is handed
instances_api workers added and removed at run time
pipeline      one request through its stages
encode_stage  pictures to encoders, each once
steps         steps from workers: reading ahead, and what of them is news
fleet         the workers: who is up, who gets the next request
client        HTTP to workers
metrics       what /metrics shows
relay         the `openai` dialect: requests relayed as they are
"""
