// What the page asks the proxy. Keys are kept in the tab's session storage, and nowhere else.

const API_KEY = "triptych.api-key";
const ADMIN_KEY = "triptych.admin-key";

export const keys = {
  get api() { return sessionStorage.getItem(API_KEY) ?? ""; },
  set api(key) { store(API_KEY, key); },
  get admin() { return sessionStorage.getItem(ADMIN_KEY) ?? ""; },
  set admin(key) { store(ADMIN_KEY, key); },
};

function store(name, key) {
  if (key) sessionStorage.setItem(name, key);
  else sessionStorage.removeItem(name);
}

/** A refusal or failure of the proxy: its message, status and code. */
export class ApiError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const clientHeaders = () => (keys.api ? { authorization: `Bearer ${keys.api}` } : {});
const adminHeaders = () => ({ "x-api-key": keys.admin });

/** The JSON at a path, relative to the page. */
export async function getJson(path, headers = {}, patience = 8000) {
  const answer = await sent(path, { headers, signal: AbortSignal.timeout(patience) });
  return answer.json();
}

export const asAdmin = (path) => getJson(path, adminHeaders());

async function sent(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    // The reader has stopped it: that is no failure of the proxy.
    if (error.name === "AbortError") throw error;
    const late = error.name === "TimeoutError";
    throw new ApiError(late ? "The proxy did not answer in time." : "The proxy cannot be reached.");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  let said = {};
  try {
    said = (await answer.json()).error ?? {};
  } catch {
    // An answer of something between the page and the proxy: its status has to do.
  }
  const message = said.message ?? `The proxy answered with status ${answer.status}.`;
  return new ApiError(String(message), answer.status, String(said.code ?? ""));
}

/** Ask a chat question; yields the events of its answer as objects. */
export async function* chat(body, id, signal) {
  const headers = { "content-type": "application/json", "x-request-id": id, ...clientHeaders() };
  const options = { method: "POST", headers, body: JSON.stringify(body), signal };
  const answer = await sent("v1/chat/completions", options);
  for await (const data of eventsOf(answer.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(String(event.error.message), 200, String(event.error.code ?? ""));
    yield event;
  }
}

/** The data of each server-sent event. */
async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      // The last part is an event whose end has not come, or nothing.
      rest = events.pop();
      for (const event of events) {
        const lines = event.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    // Who leaves before the end ends the request with it: the proxy sees its connection close.
    reader.cancel().catch(() => {});
  }
}

/** An id for a request that no other client can guess: with it the page follows its stages. */
export function drawnId() {
  const drawn = crypto.getRandomValues(new Uint8Array(16));
  return `page-${Array.from(drawn, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
