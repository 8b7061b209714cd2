"""Answers read: tool calls and reasoning leave the text, family by family.

source       a text that arrives piece by piece, and how readers wait for more of it
heard        what a reader hears: text, reasoning, pieces of calls
base         `ToolFormat`, the one interface of all families; `rules`: grammars of forced calls
reading      which family's, by flag or by chat template; `Reader`: reasoning, then text and calls,
             for streamed and whole answers alike

json_call (Hermes and Qwen), qwen3_coder, llama3, mistral, glm, deepseek, dsml, gemma, harmony: one
form each; json_call and parameters have what several of them share, gemma_values the values in the
grammars of Gemma's
"""
