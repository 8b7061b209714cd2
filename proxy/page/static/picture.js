// The picture of the question: dropped, pasted, chosen, or one of the examples.

import { byId, el } from "./dom.js";
import { EXAMPLES, drawn } from "./examples.js";

const LARGEST = 40e6;

export class Picture {
  /** `changed` is called with what went wrong, or "" if nothing did. */
  constructor(changed) {
    this.url = "";
    this.name = "";
    this.changed = changed;
    this.turn = 0;
    this.preview = byId("preview");
    this.drop = byId("drop");
    this.buttons = EXAMPLES.map((example) => this.exampleButton(example));
    byId("examples").append(...this.buttons);
    byId("remove").addEventListener("click", () => this.clear());
    byId("file").addEventListener("change", (event) => {
      this.take(event.target.files[0]);
      // Or the browser would tell of no change when the same file is chosen again.
      event.target.value = "";
    });
    this.listenToDrops();
    document.addEventListener("paste", (event) => {
      const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
      if (file) this.take(file);
    });
  }

  exampleButton(example) {
    const canvas = drawn(example);
    canvas.setAttribute("aria-hidden", "true");
    return el("button", {
      type: "button", title: example.name, "aria-label": `Example: ${example.name}`, "aria-pressed": "false",
      onclick: (event) => this.show(canvas.toDataURL("image/png"), example.name, event.currentTarget),
    }, canvas);
  }

  listenToDrops() {
    const mark = (over) => (event) => {
      // Without this the browser takes no drop, or opens the file in the page's place.
      event.preventDefault();
      this.drop.classList.toggle("over", over);
    };
    for (const name of ["dragenter", "dragover"]) document.addEventListener(name, mark(true));
    document.addEventListener("dragleave", mark(false));
    document.addEventListener("drop", (event) => {
      mark(false)(event);
      this.take(event.dataTransfer?.files[0]);
    });
  }

  async take(file) {
    if (!file) return;
    if (!file.type.startsWith("image/")) {
      this.changed(`${file.name} is not a picture.`);
    } else if (file.size > LARGEST) {
      this.changed(`${file.name} is larger than 40 MB.`);
    } else {
      const turn = (this.turn += 1);
      const url = await dataUrl(file);
      if (turn !== this.turn) return; // another one was chosen meanwhile
      if (url) this.show(url, file.name, null);
      else this.changed(`${file.name} cannot be read.`);
    }
  }

  show(url, name, button) {
    this.turn += 1;
    this.url = url;
    this.name = name;
    this.preview.src = url;
    this.preview.alt = name;
    this.preview.hidden = false;
    this.mark(button);
    this.changed("");
  }

  clear() {
    this.turn += 1;
    this.url = this.name = "";
    this.preview.removeAttribute("src");
    this.preview.hidden = true;
    this.mark(null);
    this.changed("");
    byId("file").focus();
  }

  mark(button) {
    byId("drop-hint").hidden = Boolean(this.url);
    byId("remove").hidden = !this.url;
    this.drop.classList.toggle("full", Boolean(this.url));
    for (const one of this.buttons) one.setAttribute("aria-pressed", String(one === button));
  }
}

function dataUrl(file) {
  return new Promise((done) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result));
    reader.addEventListener("error", () => done(""));
    reader.readAsDataURL(file);
  });
}
