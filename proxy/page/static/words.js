// Numbers and names as people read them.

export const STAGES = { encode: "Encode", prefill: "Prefill", decode: "Decode" };

export function ms(value) {
  if (value === null || value === undefined) return "";
  if (value < 9.95) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return value < 60000 ? `${(value / 1000).toFixed(2)} s` : `${(value / 60000).toFixed(1)} min`;
}

export function ago(milliseconds) {
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 2) return "now";
  if (seconds < 60) return `${seconds} s`;
  return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

export function many(count, noun, plural = `${noun}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? noun : plural}`;
}

export const percent = (share) => `${Math.round(100 * share)} %`;

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; count >= 1000 && unit < units.length - 1; unit += 1) count /= 1000;
  return `${count < 10 && unit ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

/** A worker's host and port. */
export function place(url) {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
}

/** One or several words with commas and "and" between them. */
export function listed(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}
