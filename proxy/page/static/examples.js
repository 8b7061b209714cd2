// Example pictures, drawn here: coloured shapes, which the demonstration model knows.

const SIZE = 224;
export const EXAMPLES = [
  { name: "A red circle and a blue square on white", ground: "#ffffff", things: [
    ["circle", "#e8121c", 0.28, 0.3, 0.2], ["square", "#1733f0", 0.72, 0.7, 0.21]] },
  { name: "A yellow star on black", ground: "#0c0c0d", things: [["star", "#fbe514", 0.5, 0.5, 0.36]] },
  { name: "A green triangle, an orange circle and a purple cross on white", ground: "#f6f6f7", things: [
    ["triangle", "#14a01e", 0.27, 0.3, 0.2], ["circle", "#fb9312", 0.74, 0.28, 0.19],
    ["cross", "#8a1ea0", 0.5, 0.75, 0.2]] },
  { name: "A pink square and a green star on grey", ground: "#85858a", things: [
    ["square", "#ff8fbd", 0.27, 0.7, 0.2], ["star", "#11a31c", 0.72, 0.3, 0.21]] },
];

/** A canvas with the example on it, of the size that the model was trained with. */
export function drawn(example) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIZE;
  const brush = canvas.getContext("2d");
  brush.fillStyle = example.ground;
  brush.fillRect(0, 0, SIZE, SIZE);
  for (const [form, colour, x, y, radius] of example.things) {
    brush.fillStyle = colour;
    brush.beginPath();
    trace(brush, form, x * SIZE, y * SIZE, radius * SIZE);
    brush.fill();
  }
  return canvas;
}

function trace(brush, form, x, y, radius) {
  if (form === "circle") {
    brush.arc(x, y, radius, 0, 2 * Math.PI);
    return;
  }
  for (const [distance, angle] of outline(form)) {
    brush.lineTo(x + distance * radius * Math.sin(angle), y - distance * radius * Math.cos(angle));
  }
  brush.closePath();
}

/** Corners as distance from the centre and clockwise angle from the top. */
function outline(form) {
  const turns = (count) => Array.from({ length: count }, (_, i) => (2 * Math.PI * i) / count);
  if (form === "square") return turns(4).map((angle) => [1, angle + Math.PI / 4]);
  if (form === "triangle") return turns(3).map((angle) => [1, angle]);
  if (form === "star") return turns(10).map((angle, i) => [i % 2 ? 0.42 : 1, angle]);
  const arm = Math.atan(0.36);
  const corner = 0.36 * Math.SQRT2;
  return turns(4).flatMap((angle) => [[1, angle - arm], [1, angle + arm], [corner, angle + Math.PI / 4]]);
}
