"""The `openai` dialect: requests relayed as they are to workers that speak vLLM's EPD protocol."""
