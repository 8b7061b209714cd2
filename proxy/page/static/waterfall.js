// A request's stages as bars on a common scale, redrawn while it runs.

import { el, setVars } from "./dom.js";
import { cachedMedia, decodeBegins, lengthOf, remark, spansOf } from "./stages.js";
import { STAGES, many, ms, percent } from "./words.js";

const PROXY = ["queue", "render", "place"];
const SHORTEST = 40; // milliseconds that the scale has at least

export class Waterfall {
  constructor(node, prompt) {
    this.node = node;
    this.prompt = prompt;
  }

  /** `view` as told by the proxy, `now` in milliseconds since the request came. */
  draw(view, now) {
    const scale = scaleOf(Math.max(now, view.ms, SHORTEST));
    const at = (value) => `${(100 * Math.min(value, scale)) / scale}%`;
    const lanes = [this.proxyLane(view, now, at)];
    for (const stage of Object.keys(STAGES)) lanes.push(this.lane(view, stage, now, at));
    if (view.ttft_ms !== null) {
      lanes.push(el("div", { class: "first", vars: { at: view.ttft_ms / scale }, title: "First token" }));
    }
    const first = view.ttft_ms === null ? "" : `First token after ${ms(view.ttft_ms)}`;
    lanes.push(el("p", { class: "scale" }, el("span", { text: "0" }), el("span", { text: first }), el("span", { text: ms(scale) })));
    this.node.replaceChildren(...lanes);
    this.prompt.replaceChildren(...promptParts(view));
  }

  proxyLane(view, now, at) {
    const bars = PROXY.flatMap((stage) => barsOf(spansOf(view, stage, now), at, "", `${stage}, in the proxy`));
    const length = PROXY.reduce((sum, stage) => sum + lengthOf(spansOf(view, stage, now)), 0);
    return lane("other", "Proxy", track(bars), bars.length ? ms(length) : "");
  }

  lane(view, stage, now, at) {
    const spans = spansOf(view, stage, now);
    const why = remark(view, stage);
    if (!spans.length) {
      return lane(stage, STAGES[stage], el("p", { class: "why", text: why }), "");
    }
    const hit = stage === "encode" ? why : stage === "prefill" && view.cached_tokens;
    const bars = stage === "decode" ? decodeBars(view, spans, now, at) : barsOf(spans, at, hit ? "hit" : "");
    const shown = lane(stage, STAGES[stage], track(bars), ms(lengthOf(spans)));
    if (hit) shown.lastChild.title = why || `${view.cached_tokens} prompt tokens from the cache`;
    return shown;
  }
}

function lane(kind, name, content, time) {
  return el("div", { class: `lane ${kind}` },
    el("span", { class: "name", text: name }), content, el("span", { class: "time", text: time }));
}

const track = (bars) => el("div", { class: "track" }, ...bars);

function barsOf(spans, at, kind, title) {
  return spans.map(([start, end]) => bar(start, end, at, kind, title));
}

function bar(start, end, at, kind = "", title = undefined) {
  return el("span", { class: `bar ${kind}`, vars: { from: at(start), to: at(end) }, title });
}

function decodeBars(view, spans, now, at) {
  const begins = decodeBegins(view, now);
  return spans.flatMap(([start, end]) => {
    const from = Math.min(Math.max(start, begins), end);
    const waiting = from > start ? [bar(start, from, at, "waiting", "takes the prompt's KV over")] : [];
    const hit = !begins && view.cached_tokens ? "hit" : ""; // this worker had the prompt's KV
    return end > from ? [...waiting, bar(from, end, at, hit)] : waiting;
  });
}

/** The next round number of milliseconds, so that the scale does not move all the time. */
function scaleOf(most) {
  const step = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((times) => times * step).find((value) => value >= most * 1.01)
    ?? 10 * step;
}

/** The prompt from its first token to its last: what is text, what is picture, what was cached. */
function promptParts(view) {
  if (!view.prompt_tokens || view.cached_tokens === null) return [];
  const strip = el("div", { class: "strip", "aria-hidden": "true" }, ...segments(view).map((part) =>
    el("span", { class: `${part.kind} ${part.cached ? "cached" : ""}`, vars: { size: part.size } })));
  const media = cachedMedia(view);
  const rows = [];
  if (media) rows.push(key("picture", many(media.tokens, "picture token")));
  rows.push(key("text", many(view.prompt_tokens - (media?.tokens ?? 0), media ? "text token" : "token")));
  rows.push(key("cached", `${percent(view.cached_tokens / view.prompt_tokens)} cached`));
  return [el("h3", { class: "quiet", text: "Prompt" }), strip, el("p", { class: "keys" }, ...rows)];
}

const key = (kind, text) => el("span", { class: kind }, el("i"), text);

function segments(view) {
  const marks = new Set([0, view.prompt_tokens, Math.min(view.cached_tokens, view.prompt_tokens)]);
  for (const item of view.items) marks.add(item.offset).add(item.offset + item.length);
  const edges = [...marks].sort((a, b) => a - b);
  return edges.slice(1).map((end, index) => {
    const start = edges[index];
    const inside = view.items.some((item) => start >= item.offset && end <= item.offset + item.length);
    return { size: end - start, kind: inside ? "picture" : "text", cached: end <= view.cached_tokens };
  });
}

/** All three stages in one small row. */
export function mini(view) {
  const most = Math.max(view.ms, 1);
  const at = (value) => `${(100 * value) / most}%`;
  const bars = Object.keys(STAGES).flatMap((stage) =>
    spansOf(view, stage, view.ms).map(([start, end]) =>
      setVars(el("span", { class: `bar ${stage}` }), { from: at(start), to: at(end) })));
  return el("span", { class: "mini", "aria-hidden": "true" }, ...bars);
}
