// The last minutes of a figure as a line without axes; its newest value stands beside it.

import { svg } from "./dom.js";

const POINTS = 90;
const FEWEST = 24; // fewer values do not fill the width
const OVER_MS = 8000;
const WIDTH = 100;
const HEIGHT = 24;

/** The last values of figures by name. */
export class Past {
  constructor() {
    this.series = new Map();
  }

  add(name, value) {
    const values = this.series.get(name) ?? [];
    values.push(value);
    if (values.length > POINTS) values.shift();
    this.series.set(name, values);
  }

  /** Forget those that are not among `names`. */
  keep(names) {
    for (const name of this.series.keys()) if (!names.has(name)) this.series.delete(name);
  }

  line(name, least = 1) {
    const values = this.series.get(name) ?? [];
    const most = Math.max(least, ...values);
    const step = WIDTH / (Math.max(values.length, FEWEST) - 1);
    const x = (index) => WIDTH - (values.length - 1 - index) * step;
    const y = (value) => HEIGHT - 2 - (value / most) * (HEIGHT - 4);
    const points = values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`);
    const shape = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    if (points.length > 1) {
      shape.append(
        svg("polygon", { class: "spark-area", points: `${x(0)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` }),
        svg("polyline", { class: "spark", points: points.join(" ") }));
    }
    return shape;
  }
}

/** How fast counters grow, over the last seconds: workers are not asked each time the page asks. */
export class Rates {
  constructor() {
    this.seen = new Map();
  }

  of(name, value, now) {
    // A counter that has fallen is that of a worker which restarted: what it was before is void.
    const seen = (this.seen.get(name) ?? []).filter((one) => one.value <= value && now - one.now <= OVER_MS);
    this.seen.set(name, [...seen, { value, now }]);
    return seen.length ? ((value - seen[0].value) * 1000) / (now - seen[0].now) : null;
  }
}
