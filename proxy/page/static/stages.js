// A request's stages as the proxy has told them, put in the terms that people read.

import { STAGES, listed, many } from "./words.js";

/** The calls of a stage as spans of milliseconds that do not overlap; `now` ends those that last. */
export function spansOf(view, stage, now) {
  const spans = view.calls
    .filter((call) => call.stage === stage)
    .map((call) => [call.start, call.end ?? Math.max(now, call.start)])
    .sort((a, b) => a[0] - b[0]);
  const joined = [];
  for (const [start, end] of spans) {
    const last = joined[joined.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else joined.push([start, end]);
  }
  return joined;
}

export const lengthOf = (spans) => spans.reduce((sum, [start, end]) => sum + end - start, 0);

/** When decode began to write: until prefill has ended it takes the prompt's KV over. */
export function decodeBegins(view, now) {
  const prefill = spansOf(view, "prefill", now);
  return prefill.length ? prefill[prefill.length - 1][1] : 0;
}

/** How many of the media's tokens lie in the cached part of the prompt; null if that is not known. */
export function cachedMedia(view) {
  if (view.cached_tokens === null || !view.items.length) return null;
  const sum = (count) => view.items.reduce((total, item) => total + count(item), 0);
  return {
    tokens: sum((item) => item.length),
    cached: sum((item) => Math.max(0, Math.min(view.cached_tokens - item.offset, item.length))),
  };
}

const noun = (view) => (view.items.length > 1 || view.media > 1 ? "pictures'" : "picture's");

/** Why a stage has no bar, or a word beside it. */
export function remark(view, stage) {
  if (stage === "encode") return encodeRemark(view);
  if (stage === "prefill" && !spansOf(view, stage, 0).length && !view.running) {
    return view.cached_tokens ? "Not needed: decode had the prompt's KV." : "The decode worker read the prompt itself.";
  }
  if (stage === "decode" && !spansOf(view, stage, 0).length && !view.running) {
    return "Prefill said all there was to say.";
  }
  return "";
}

function encodeRemark(view) {
  if (spansOf(view, "encode", 0).length) {
    const all = view.embedded && view.embedded >= view.media;
    return all ? "The encoder had the embeddings." : "";
  }
  if (!view.media) return "No picture, so nothing to encode.";
  if (view.running && view.prompt_tokens === null) return "";
  return "Not needed: the picture was cached.";
}

/** What the caches have saved, in a sentence; "" if nothing is known of it. */
export function cacheSentence(view) {
  const { cached_tokens: cached, prompt_tokens: prompt } = view;
  if (cached === null) return "";
  if (!cached) {
    return view.embedded ? `The encoder had the ${noun(view)} embeddings already.` : "";
  }
  const share = `${cached.toLocaleString("en")} of ${many(prompt, "prompt token")}`;
  const media = cachedMedia(view);
  if (media && media.cached >= media.tokens) {
    return `The ${noun(view)} ${many(media.tokens, "token")} came from the cache (${share}).`;
  }
  if (media && media.cached) {
    return `${media.cached} of the ${noun(view)} ${media.tokens} tokens came from the cache (${share}).`;
  }
  return `${share} came from the cache.`;
}

/** How long it all took, in a sentence for those who do not see the bars. */
export function timeSentence(view) {
  const parts = Object.keys(STAGES)
    .map((stage) => [stage, lengthOf(spansOf(view, stage, view.ms))])
    .filter(([, length]) => length > 0)
    .map(([stage, length]) => `${stage} ${Math.round(length)} ms`);
  return parts.length ? `Stages, which overlap: ${listed(parts)}.` : "";
}
