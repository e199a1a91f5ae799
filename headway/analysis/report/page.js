"use strict";
// Sorting, switches and a reading line. Without this script everything is shown, in the order of the leaderboard.

function sortBy(table, index, direction) {
  const body = table.tBodies[0];
  const value = (row) => {
    const cell = row.cells[index];
    const given = cell.dataset.sort;
    const number = given === undefined ? NaN : parseFloat(given);
    return Number.isNaN(number) ? cell.textContent.trim().toLowerCase() : number;
  };
  const keyed = Array.from(body.rows, (row, place) => ({ row, place, value: value(row) }));
  keyed.sort((a, b) => {
    const less = a.value < b.value ? -1 : a.value > b.value ? 1 : 0;
    return (direction === "ascending" ? less : -less) || a.place - b.place;
  });
  for (const { row } of keyed) body.append(row);
  Array.from(table.tHead.rows[0].cells).forEach((cell, i) => {
    if (i === index) cell.setAttribute("aria-sort", direction);
    else cell.removeAttribute("aria-sort");
  });
}

for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[0].cells).forEach((cell, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    const first = index === 0 ? "ascending" : "descending";
    const other = index === 0 ? "descending" : "ascending";
    button.addEventListener("click", () => {
      sortBy(table, index, cell.getAttribute("aria-sort") === first ? other : first);
    });
  });
}
const board = document.querySelector("#leaderboard table.sortable");
if (board) board.tHead.rows[0].cells[1].setAttribute("aria-sort", "descending"); // the order the page was written in

const boxes = Array.from(document.querySelectorAll("input[data-switch]"));
function show(key, on) {
  for (const part of document.querySelectorAll(`[data-recipe="${key}"]`)) part.classList.toggle("off", !on);
}
for (const panel of document.querySelectorAll(".switches")) panel.hidden = false;
for (const box of boxes) {
  box.checked = true; // browsers remember boxes over a reload, charts do not
  box.addEventListener("change", () => show(box.dataset.switch, box.checked));
}
for (const button of document.querySelectorAll("button[data-all]")) {
  button.addEventListener("click", () => {
    for (const box of boxes) {
      box.checked = button.dataset.all === "1";
      show(box.dataset.switch, box.checked);
    }
  });
}

// A line that reads the values under the pointer, or under the arrow keys, off the curves themselves.
const names = new Map(boxes.map((box) => [box.dataset.switch, box.parentElement.textContent.trim()]));
function reader(chart) {
  const [lo, hi, log] = chart.dataset.x.split(" ");
  const [lowest, highest, unit = ""] = chart.dataset.y.split(" ");
  const [low, high] = [Number(lowest), Number(highest)];
  const area = { left: 52, right: 446, top: 12, bottom: 258 };
  const curves = Array.from(chart.querySelectorAll("g[data-recipe]"), (group) => ({
    group,
    name: names.get(group.dataset.recipe) || "",
    points: group.querySelector(".line").getAttribute("d").slice(1).split("L").map((pair) => pair.split(" ").map(Number)),
  })).reverse();
  const places = [...new Set(curves.flatMap((c) => c.points.map((p) => p[0])))].sort((a, b) => a - b);
  const output = document.createElement("output");
  output.setAttribute("aria-live", "polite");
  chart.after(output);
  const cross = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cross.setAttribute("class", "cross");
  let at = -1;
  const valueAt = (x) => {
    const share = (x - area.left) / (area.right - area.left);
    return log ? Math.exp(Math.log(+lo) + share * Math.log(+hi / +lo)) : +lo + share * (+hi - +lo);
  };
  const read = (index) => {
    at = Math.max(0, Math.min(places.length - 1, index));
    const x = places[at];
    cross.setAttribute("d", `M${x} ${area.top}V${area.bottom}`);
    chart.append(cross);
    const values = curves.filter((c) => !c.group.classList.contains("off")).flatMap((c) => {
      const near = c.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
      if (Math.abs(near[0] - x) > 6) return [];
      const y = low + ((area.bottom - near[1]) / (area.bottom - area.top)) * (high - low);
      return [`${c.name} ${unit ? y.toFixed(1) : y.toPrecision(3)} ${unit}`.trim()];
    });
    const value = valueAt(x);
    output.textContent = `at ${value >= 100 ? Math.round(value).toLocaleString("en") : +value.toPrecision(3)}: ${values.join(" · ")}`;
  };
  const clear = () => { cross.remove(); output.textContent = ""; at = -1; };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    read(places.reduce((best, p, i) => (Math.abs(p - x) < Math.abs(places[best] - x) ? i : best), 0));
  });
  chart.addEventListener("pointerleave", clear);
  chart.addEventListener("blur", clear);
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    read(at < 0 ? (step > 0 ? 0 : places.length - 1) : at + step);
  });
  chart.setAttribute("tabindex", "0");
}
for (const chart of document.querySelectorAll("svg.chart[data-x]")) if (chart.querySelector(".line")) reader(chart);
