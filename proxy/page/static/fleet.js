// The fleet's panel: the health that every client may see, and what the admin key opens.

import { asAdmin, getJson, keys } from "./api.js";
import { byId, el, say } from "./dom.js";
import { Past } from "./spark.js";
import { Requests } from "./requests.js";
import { Workers } from "./workers.js";
import { many } from "./words.js";

const EVERY_MS = 1500;

export class FleetPanel {
  constructor(about) {
    this.about = about;
    this.workers = new Workers();
    this.requests = new Requests();
    this.past = new Past();
    this.seen = new Set();
    this.soon = null;
    byId("door").addEventListener("submit", (event) => {
      event.preventDefault();
      keys.admin = byId("admin").value.trim();
      byId("admin").value = "";
      this.turn();
    });
    byId("leave").addEventListener("click", () => {
      keys.admin = "";
      this.turn();
      byId("admin").focus();
    });
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.turn();
    });
    this.turn();
  }

  /** Ask and draw now, and again after a while as long as somebody looks. */
  async turn() {
    clearTimeout(this.soon);
    // Set before anything is asked: an answer that fails, or never comes, must not end the turns.
    this.soon = setTimeout(() => this.turn(), EVERY_MS);
    // As long as an operator's page asks, relayed requests are recorded: a hidden one must not.
    if (document.hidden) {
      clearTimeout(this.soon);
      return;
    }
    try {
      await (keys.admin ? this.asOperator() : this.asAnybody());
    } catch (error) {
      say(byId("health"), error.message);
    }
  }

  async asOperator() {
    try {
      const [fleet, { requests }] = await Promise.all([asAdmin("page/fleet"), asAdmin("page/requests")]);
      if (!keys.admin) return; // given back meanwhile
      this.open(true);
      this.show(fleet, requests);
    } catch (error) {
      if (error.status !== 401) throw error;
      keys.admin = "";
      say(byId("door-problem"), "This is not the admin key.");
      await this.asAnybody();
    }
  }

  open(open) {
    byId("door").hidden = open;
    byId("figures").hidden = byId("recent").hidden = !open;
    if (open) say(byId("door-problem"), "");
  }

  show(fleet, requests) {
    const now = performance.now();
    const tokens = this.workers.note(fleet.workers, now);
    this.workers.draw(fleet.workers);
    this.requests.draw(requests);
    const ended = requests.filter((view) => !view.running);
    const recent = ended.filter((view) => view.ago_ms < 60000);
    const firsts = recent.map((view) => view.ttft_ms).filter((value) => value !== null).sort((a, b) => a - b);
    this.figures([
      ["In progress", fleet.in_flight, "requests"],
      ["Waiting", fleet.waiting, "requests"],
      ["Output", tokens === null ? null : Math.round(tokens), "tokens/s"],
      ["First token, median", firsts.length ? Math.round(firsts[firsts.length >> 1]) : null, "ms"],
    ]);
    const up = fleet.workers.filter((one) => one.state === "up").length;
    const by = fleet.placed_by === "master" ? "a master places requests" : "this proxy places requests";
    say(byId("health"), `${up} of ${many(fleet.workers.length, "worker")} up; ${fleet.draining ? "the proxy is about to stop" : by}`);
  }

  figures(rows) {
    byId("figures").replaceChildren(...rows.map(([name, value, unit]) => {
      this.past.add(name, value ?? 0);
      return el("div", { class: "figure" },
        el("p", { class: "label", text: name }),
        el("p", { class: "value" }, value === null ? "–" : value.toLocaleString("en"), el("span", { class: "unit", text: unit })),
        this.past.line(name));
    }));
  }

  async asAnybody() {
    this.open(false);
    if (!this.about.admin_key) {
      byId("door-text").textContent = "Start the proxy with --admin-api-key to see each worker's queue, batch and cache, the last requests, and why the master placed them so.";
      byId("admin").closest("p").hidden = true;
    }
    const answer = await fetch("health", { cache: "no-store", signal: AbortSignal.timeout(5000) }).catch(() => null);
    const told = answer ? await answer.json().catch(() => null) : null;
    if (!told) {
      say(byId("health"), answer ? (answer.ok ? "Requests can be served" : "No requests can be served") : "The proxy cannot be reached");
      byId("columns").replaceChildren();
      return;
    }
    const workers = ["encode", "prefill", "decode"].flatMap((role) =>
      Object.entries(told[role] ?? {}).map(([url, state]) => ({ role, url, state })));
    this.workers.draw(workers);
    const up = workers.filter((one) => one.state === "up").length;
    say(byId("health"), `${up} of ${many(workers.length, "worker")} up`);
  }
}
