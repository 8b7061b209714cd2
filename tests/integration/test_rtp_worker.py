"""A real worker that RTP-LLM's frontends ask over gRPC, and over HTTP."""

import grpc
import numpy as np

from services.grpc.proto import rtp_pb2 as pb
from tests.conftest import ModelDir
from tests.support.frontend_helpers import data_url, picture
from tests.support.stack import call, idle, running


def test_a_worker_answers_rtp_llms_frontend(model_dir: ModelDir) -> None:
    with running(model_dir("qwen3")) as stack:
        worker = stack.start("services.pdfusion", "--rtp-grpc-port", "0")
        worker.wait_ready()
        port = call(f"{worker.url}/worker_status")[1]["grpc_proto_port"]
        config = {"max_new_tokens": 48, "do_sample": False, "ignore_eos": True}
        shown = {**config, "return_output_ids": True, "return_input_ids": True}
        status, answer = call(worker.url, {"prompt": "How many?", "generate_config": shown})
        assert status == 200, answer
        (prompt,), (output,) = answer["input_ids"], answer["output_ids"]
        asked = pb.GenerateInput(request_id=5, token_ids=prompt)
        asked.generate_config.max_new_tokens = config["max_new_tokens"]
        asked.generate_config.ignore_eos = asked.generate_config.is_streaming = True
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            generate = channel.unary_stream(
                "/RpcService/GenerateStreamCall",
                pb.GenerateInput.SerializeToString,
                pb.GenerateOutputs.FromString,
            )
            tensors = [one.flatten_output.output_ids for one in generate(asked, timeout=30)]
        ids = [int(i) for one in tensors for i in np.frombuffer(one.int32_data, np.int32)]
        assert ids == output and len(tensors) > 1
        for method, path in (("GET", "/"), ("POST", "/health_check"), ("GET", "/status")):
            assert call(f"{worker.url}{path}", method=method) == (200, "ok")
        lora = {"peft_info": {"lora_info": {"a": "/lora/a"}}}
        status, answer = call(f"{worker.url}/update", lora)
        assert status == 400 and "--enable-lora" in answer["error"]["message"]
        idle(worker)


def test_a_worker_sees_the_pictures_of_raw_prompts(model_dir: ModelDir) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        worker = stack.start("services.pdfusion")
        worker.wait_ready()
        config = {"max_new_tokens": 4, "top_k": 1, "return_input_ids": True}
        found = []
        for images in ([], [data_url(picture())], [data_url(picture()), data_url(picture(90))]):
            body = {"prompt": "What?", "images": images, "generate_config": config}
            status, answer = call(worker.url, body)
            assert status == 200, answer
            found.append(answer["input_ids"][0])
        assert len(found[0]) < len(found[1]) < len(found[2])
        idle(worker)


def test_an_encoder_generates_nothing(model_dir: ModelDir) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        worker = stack.start("services.encoder", "--rtp-grpc-port", "0")
        status, lines = worker.refusal()
        assert status == 2 and "--rtp-grpc-port: a worker of the role encode" in lines[-1]
