// The last requests as bars; each opens to its stages, its workers and the master's reasons.

import { byId, el } from "./dom.js";
import { cacheSentence, lengthOf, spansOf } from "./stages.js";
import { mini } from "./waterfall.js";
import { STAGES, ago, listed, many, ms, place } from "./words.js";

const SHOWN = 14;
const PROMPT = [
  ["hit_tokens", "cached tokens"], ["queue_ms", "queue ms"], ["work_ms", "work ms"],
  ["ttft_ms", "first token ms"],
];
const ANSWER = [
  ["hit_tokens", "cached tokens"], ["requests", "requests"], ["step_ms", "step ms"],
  ["decode_ms", "answer ms"],
];
const ALIKE_MS = 0.05;

export class Requests {
  constructor() {
    this.open = new Map(); // views of the opened ones by id: they stay while others come
    this.list = byId("requests");
  }

  draw(requests) {
    for (const view of requests) if (this.open.has(view.id)) this.open.set(view.id, view);
    const newest = requests.slice(0, SHOWN);
    const found = [...newest, ...[...this.open.values()].filter((one) => newest.every((view) => view.id !== one.id))];
    byId("no-requests").hidden = found.length > 0;
    const known = new Map([...this.list.children].map((item) => [item.dataset.id, item]));
    const items = found.map((view) => this.item(view, known.get(view.id)));
    const ids = new Set(found.map((view) => view.id));
    for (const [id, item] of known) if (!ids.has(id)) item.remove();
    items.forEach((item, index) => {
      if (this.list.children[index] !== item) this.list.insertBefore(item, this.list.children[index] ?? null);
    });
  }

  /** A row stays the same element while it is shown, so that focus and selection stay in it. */
  item(view, known) {
    const state = `${view.running ? view.ms : "over"} ${this.open.has(view.id)}`;
    if (known) {
      known.querySelector(".ago").textContent = ago(view.ago_ms);
      if (known.dataset.state === state) return known;
    }
    const item = known ?? el("li", { "data-id": view.id });
    // The button is made anew: the focus that was on the old one has to be given to it.
    const focused = item.contains(document.activeElement);
    item.dataset.state = state;
    const button = this.button(view);
    item.replaceChildren(button, ...(this.open.has(view.id) ? [detail(view)] : []));
    if (focused) button.focus();
    return item;
  }

  button(view) {
    const open = this.open.has(view.id);
    const state = view.running ? "running" : view.outcome;
    const good = view.running || view.outcome === "ok";
    return el("button", {
      type: "button", "aria-expanded": String(open),
      onclick: () => {
        if (open) this.open.delete(view.id);
        else this.open.set(view.id, view);
        this.item(view, this.list.querySelector(`li[data-id="${CSS.escape(view.id)}"]`));
      },
    },
    el("span", { class: "ago", text: ago(view.ago_ms) }),
    mini(view),
    el("span", { class: good ? "ms" : "ms wrong", text: good ? ms(view.ms) : state }),
    el("span", { class: "tokens", text: tokens(view) }),
    el("span", { class: "hidden-text", text: `${state}. ${cacheSentence(view)}` }));
  }
}

function tokens(view) {
  if (view.cached_tokens) return `${view.cached_tokens} cached`;
  if (view.completion_tokens !== null) return many(view.completion_tokens, "token");
  return view.media ? many(view.media, "picture") : "";
}

function detail(view) {
  return el("div", { class: "detail" },
    el("p", {}, el("span", { class: "quiet", text: "Request " }), `${view.id} · ${view.model || "no model named"} · ${view.path}`),
    el("p", { text: `${counts(view)} ${cacheSentence(view)}`.trim() }),
    stagesTable(view),
    ...view.reasons.flatMap((reasons) => reasons.map(reasonsTable)),
    view.reasons.length ? null : el("p", { class: "quiet", text: "No reasons: no master placed this request, or no page was open then." }));
}

function counts(view) {
  const parts = [];
  if (view.media) parts.push(many(view.media, "picture"));
  if (view.prompt_tokens !== null) parts.push(many(view.prompt_tokens, "prompt token"));
  if (view.completion_tokens !== null) parts.push(many(view.completion_tokens, "output token"));
  if (view.ttft_ms !== null) parts.push(`first token after ${ms(view.ttft_ms)}`);
  if (view.retries) parts.push(many(view.retries, "further attempt"));
  return parts.length ? `${listed(parts)}.` : "";
}

function stagesTable(view) {
  const known = Object.keys(STAGES);
  const names = [...new Set(view.calls.map((call) => call.stage))]
    .sort((a, b) => known.indexOf(a) - known.indexOf(b));
  const rows = names.map((stage) => {
    const spans = spansOf(view, stage, view.ms);
    const called = view.calls.filter((call) => call.stage === stage && call.worker).map((call) => call.worker);
    const workers = [...new Set(stage === "encode" ? [...called, ...view.encoders] : called)].map(place);
    return el("tr", { class: stage in STAGES ? stage : "other" },
      el("td", { text: STAGES[stage] ?? stage }), el("td", { text: ms(spans[0][0]) }),
      el("td", { text: ms(lengthOf(spans)) }), el("td", { text: workers.join(", ") || "proxy" }));
  });
  const head = ["Stage", "began after", "took", "worker"].map((text) => el("th", { scope: "col", text }));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)));
}

function reasonsTable(reasons) {
  const kind = reasons.stage in STAGES ? reasons.stage : "prefill";
  const numbers = reasons.stage === "decode" ? ANSWER : PROMPT;
  const head = ["Worker", ...numbers.map(([, text]) => text)].map((text) => el("th", { scope: "col", text }));
  const rows = reasons.workers.map((one) => el("tr", { class: one.worker === reasons.chosen ? "chosen" : "" },
    el("td", { text: place(one.worker) + (one.worker === reasons.chosen ? " ✓" : "") }),
    ...numbers.map(([name]) => el("td", { text: rounded(one[name]) }))));
  return el("div", { class: `scroll ${kind}` }, el("table", {},
    el("caption", {}, el("b", { text: STAGES[reasons.stage] ?? "Prefill and decode" }), `: ${why(reasons)}`),
    el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)));
}

const rounded = (value) => (Number.isFinite(value) ? String(Math.round(value * 10) / 10) : "");

const cost = (worker) => worker.ttft_ms + worker.decode_ms;

/** What the numbers say for the worker that the master chose. */
function why(reasons) {
  const [chosen, ...others] = reasons.workers;
  const at = place(reasons.chosen);
  if (!others.length) return `the master chose ${at}, the only worker that could take it.`;
  const hits = chosen.hit_tokens > Math.max(...others.map((one) => one.hit_tokens))
    ? `it holds ${many(Math.round(chosen.hit_tokens), "token")} of the prompt, more than any other` : "";
  const gained = Math.min(...others.map(cost)) - cost(chosen);
  const sooner = gained > ALIKE_MS ? `it was expected to be done ${ms(gained)} sooner than the next` : "";
  const alike = Math.abs(gained) <= ALIKE_MS ? "they were expected to take the same time" : "its cost was the lowest of all";
  const because = listed([hits, sooner].filter(Boolean)) || alike;
  return `the master chose ${at} of ${many(reasons.able, "worker")}: ${because}.`;
}
