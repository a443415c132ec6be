// The report: its figures, from the JSON in the page, each drawn in its place.

import { draw } from "./chart.js";

for (const figure of JSON.parse(document.getElementById("figures").textContent)) {
  draw(document.getElementById(`plot-${figure.name}`), figure);
}
document.documentElement.setAttribute("data-drawn", "");
