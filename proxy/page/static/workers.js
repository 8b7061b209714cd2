// The fleet's three columns. Without the admin key they show what /health tells every client.

import { byId, el } from "./dom.js";
import { Past, Rates } from "./spark.js";
import { STAGES, bytes, many, percent, place } from "./words.js";

const SHOWN = 12; // workers of a role
const STATES = {
  up: "healthy", down: "down", draining: "draining", failing: "calls fail", suspect: "in doubt",
};

export class Workers {
  constructor() {
    this.past = new Past();
    this.rates = new Rates();
  }

  /** `workers` as told at /page/fleet, or with no more than role, url and state. */
  draw(workers) {
    const columns = Object.keys(STAGES).map((role) => this.column(role, workers.filter((one) => one.role === role)));
    byId("columns").replaceChildren(...columns);
  }

  column(role, workers) {
    const up = workers.filter((one) => one.state === "up").length;
    // Those that are not up first: where not all have room, they are not to be left out.
    const order = [...workers].sort((a, b) => (a.state === "up") - (b.state === "up"));
    const rest = workers.length - SHOWN;
    return el("section", { class: `column ${role}`, "aria-label": `${STAGES[role]} workers` },
      el("h3", {}, STAGES[role], el("span", { text: workers.length ? `${up} of ${workers.length} up` : "" })),
      ...(rest > 0 ? order : workers).slice(0, SHOWN).map((one) => this.card(one)),
      rest > 0 ? el("p", { class: "more", text: `and ${many(rest, "more worker")}` }) : null,
      workers.length ? null : el("p", { class: "none", text: none(role) }));
  }

  card(worker) {
    const name = `${worker.role} ${worker.url}`;
    const known = worker.figures && worker.state !== "down";
    return el("article", { class: `worker ${worker.state === "down" ? "is-down" : ""}` },
      el("p", { class: "who" }, el("b", { text: place(worker.url), title: worker.url }),
        el("span", { class: `state ${worker.state}`, text: STATES[worker.state] ?? worker.state })),
      worker.cause ? el("p", { class: "cause", text: worker.cause }) : null,
      known ? el("dl", {}, ...rows(worker).flatMap(row)) : null,
      known ? this.past.line(name) : null);
  }

  /** Take the figures in; returns the tokens per second of all workers, null before they show. */
  note(workers, now) {
    let tokens = null;
    const names = new Set();
    for (const worker of workers) {
      const name = `${worker.role} ${worker.url}`;
      const { figures } = worker;
      names.add(name);
      this.past.add(name, busy(worker));
      if (figures.generation_tokens === undefined) continue;
      const rate = this.rates.of(worker.url, figures.generation_tokens, now);
      if (rate !== null) tokens = (tokens ?? 0) + rate;
    }
    this.past.keep(names);
    return tokens;
  }
}

const none = (role) => ({ encode: "None: the other workers encode.", prefill: "None: decode workers read the prompt.", decode: "None yet." })[role];

/** Requests or pictures that a worker has, or as many as this proxy has sent there. */
function busy({ figures, in_flight: sent }) {
  const has = figures.num_requests_running ?? figures.num_items_encoding;
  return has === undefined ? sent : has + (figures.num_requests_waiting ?? 0);
}

function rows(worker) {
  const { figures: f, max_running: most, in_flight: sent } = worker;
  const found = [];
  if (worker.role === "encode" && f.num_items_encoding !== undefined) {
    found.push(["Queue + batch", String(f.num_items_encoding)]);
  } else if (f.num_requests_running !== undefined) {
    found.push(["Queue", String(f.num_requests_waiting ?? 0)]);
    found.push(["Batch", most ? `${f.num_requests_running} of ${most}` : String(f.num_requests_running)]);
  } else {
    found.push(["Sent from here", String(sent)]);
  }
  return [...found, ...cacheRows(worker, f)];
}

function cacheRows(worker, f) {
  const found = [];
  if (f.kv_cache_usage_perc !== undefined && worker.role !== "encode") {
    found.push(["KV in use", percent(f.kv_cache_usage_perc), f.kv_cache_usage_perc]);
  }
  const share = (name, hits, queries) => {
    if (queries) found.push([name, percent(hits / queries)]);
  };
  if (worker.role === "encode") share("Cache hits", f.mm_cache_hits ?? 0, f.mm_cache_queries);
  else if (f.prefix_cache_queries !== undefined) share("Cache hits", f.prefix_cache_hits ?? 0, f.prefix_cache_queries);
  else share("Cache hits", f.cached_tokens ?? 0, f.prompt_tokens);
  if (worker.role === "encode" && f.embedding_cache_bytes) found.push(["Embeddings", bytes(f.embedding_cache_bytes)]);
  return found;
}

function row([name, value, share]) {
  const parts = [el("dt", { text: name }), el("dd", { text: value })];
  if (share !== undefined) {
    const meter = el("dd", { class: "meter", "aria-hidden": "true" }, el("span", { vars: { share: `${100 * share}%` } }));
    parts.push(meter);
  }
  return parts;
}
