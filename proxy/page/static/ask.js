// One question: sent, its answer shown as it comes, its stages followed until it has ended.

import { ApiError, chat, clientHeaders, drawnId, getJson, keys } from "./api.js";
import { byId, el, say } from "./dom.js";
import { Picture } from "./picture.js";
import { cacheSentence, timeSentence } from "./stages.js";
import { Waterfall, mini } from "./waterfall.js";
import { many, ms } from "./words.js";

const LOOK_MS = 70;
const LAST_LOOKS = 12;
const LOST_LOOKS = 4; // in a row, after which the stages are given up
const KEPT = 6;

export class Ask {
  constructor(about) {
    this.about = about;
    this.picture = new Picture((problem) => say(byId("problem"), problem));
    this.waterfall = new Waterfall(byId("stages"), byId("prompt"));
    this.leaving = null;
    byId("key-line").hidden = !about.api_key;
    byId("key").value = keys.api;
    byId("key").addEventListener("input", (event) => { keys.api = event.target.value.trim(); });
    byId("key").addEventListener("change", () => this.listModels());
    byId("stop").addEventListener("click", () => this.leaving?.abort());
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    byId("question").addEventListener("keydown", (event) => {
      // While an input method composes a word, Enter ends the word and not the question.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask();
    });
  }

  async listModels() {
    const select = byId("model");
    try {
      const models = (await getJson("v1/models", clientHeaders())).data.map((card) => String(card.id));
      select.replaceChildren(...models.map((name) => el("option", { text: name })));
      select.disabled = models.length < 2;
    } catch (error) {
      // Without a key nothing is wrong yet: the line that asks for one is shown.
      if (error.status !== 401) say(byId("problem"), error.message);
    }
  }

  body() {
    const text = { type: "text", text: byId("question").value.trim() };
    const image = { type: "image_url", image_url: { url: this.picture.url } };
    return {
      model: byId("model").value,
      messages: [{ role: "user", content: this.picture.url ? [image, text] : [text] }],
      max_tokens: Math.max(1, Math.min(4096, Number(byId("most").value) || 128)),
      temperature: 0,
      stream: true,
      stream_options: { include_usage: true },
    };
  }

  async ask() {
    if (this.leaving) return;
    const question = byId("question").value.trim();
    if (!question) {
      say(byId("problem"), "Write a question first.");
      byId("question").focus();
      return;
    }
    const leaving = (this.leaving = new AbortController());
    this.begin();
    const id = drawnId();
    const follow = new Follow(id, this.waterfall);
    try {
      await this.stream(chat(this.body(), id, leaving.signal));
    } catch (error) {
      if (error.name !== "AbortError") this.failed(error);
    }
    // Before `leaving` is cleared: a further question would draw over the stages of this one.
    const view = await follow.ended();
    this.leaving = null;
    this.end(question, view);
  }

  begin() {
    say(byId("problem"), "");
    byId("answer").replaceChildren();
    byId("answer").setAttribute("aria-busy", "true");
    byId("summary").replaceChildren();
    byId("idle").hidden = true;
    byId("run").hidden = false;
    byId("send").disabled = true;
    byId("stop").hidden = false;
  }

  async stream(events) {
    const answer = byId("answer");
    let thought = null;
    for await (const event of events) {
      const delta = event.choices?.[0]?.delta ?? {};
      const thinking = delta.reasoning_content ?? delta.reasoning;
      if (typeof thinking === "string" && thinking) {
        thought ??= answer.appendChild(el("p", { class: "thought" }));
        thought.append(thinking);
      }
      if (typeof delta.content === "string") answer.append(delta.content);
    }
  }

  failed(error) {
    const api = error instanceof ApiError;
    say(byId("problem"), api ? error.message : "The answer broke off.");
    if (error.status === 401) {
      byId("key-line").hidden = false;
      byId("key").focus();
    }
  }

  end(question, view) {
    byId("answer").setAttribute("aria-busy", "false");
    byId("send").disabled = false;
    byId("stop").hidden = true;
    if (!byId("answer").textContent && !byId("problem").hidden) byId("run").hidden = !view;
    if (!view) return;
    byId("summary").replaceChildren(...summary(view));
    this.remember(question, view);
  }

  remember(question, view) {
    const list = byId("earlier-list");
    const cached = view.cached_tokens ? `, ${view.cached_tokens} of ${view.prompt_tokens} prompt tokens cached` : "";
    list.prepend(el("li", {},
      el("span", { class: "asked", text: question, title: question }), mini(view),
      el("span", { class: "ms", text: ms(view.ms), title: `${ms(view.ms)}${cached}` })));
    while (list.children.length > KEPT) list.lastChild.remove();
    byId("earlier").hidden = list.children.length < 2;
  }
}

function summary(view) {
  const tokens = view.completion_tokens === null ? "" : `${many(view.completion_tokens, "token")} in `;
  const ended = view.outcome === "ok" ? "" : view.outcome === "aborted" ? "Stopped. " : "Failed. ";
  const retried = view.retries ? ` ${many(view.retries, "attempt")} failed on the way.` : "";
  const hits = cacheSentence(view);
  return [
    `${ended}${tokens}${ms(view.ms)}.${retried} `,
    hits ? el("span", { class: "hits", text: `${hits} ` }) : null,
    el("span", { class: "hidden-text", text: timeSentence(view) }),
  ].filter(Boolean);
}

/** Asks for a request's stages again and again, and draws them in between too. */
class Follow {
  constructor(id, waterfall) {
    this.path = `page/stages?id=${id}`;
    this.waterfall = waterfall;
    this.view = null;
    this.seen = 0;
    this.over = false;
    this.closing = false;
    waterfall.node.replaceChildren();
    waterfall.prompt.replaceChildren();
    this.looking = this.look();
    this.draw = this.draw.bind(this);
    requestAnimationFrame(this.draw);
  }

  async look() {
    // The answer's last bytes come before the proxy has noted its end: a few looks more, and no
    // more, as a request that was stopped, or never came, may not end here at all.
    let lost = 0;
    for (let left = LAST_LOOKS; left > 0; left -= this.closing ? 1 : 0) {
      await new Promise((done) => setTimeout(done, LOOK_MS));
      try {
        const { request } = await getJson(this.path, clientHeaders(), 3000);
        this.view = request ?? this.view; // it may not have come yet
        this.seen = performance.now();
        lost = 0;
      } catch (error) {
        // A busy proxy may be late now and then. After a refusal, which has a status, the answer
        // goes on without its stages.
        lost += 1;
        if (error.status || lost === LOST_LOOKS) return;
      }
      if (this.view && !this.view.running) return;
    }
  }

  draw() {
    if (this.view) {
      const since = this.view.running ? performance.now() - this.seen : 0;
      this.waterfall.draw(this.view, this.view.ms + since);
    }
    if (!this.over) requestAnimationFrame(this.draw);
  }

  /** The stages once the request has ended; null if they could not be had. */
  async ended() {
    this.closing = true;
    await this.looking;
    this.over = true;
    if (this.view) this.waterfall.draw(this.view, this.view.ms);
    return this.view;
  }
}
