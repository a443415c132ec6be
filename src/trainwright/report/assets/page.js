"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { responsive: true, displayModeBar: false };

  // Under keys that speak of colour, "--name" stands for a property of the page's theme.
  const themed = (value, theme, key) => {
    if (Array.isArray(value)) return value.map((item) => themed(item, theme, key));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, themed(item, theme, name)]));
    }
    const named = typeof value === "string" && value.startsWith("--") && /color/i.test(key);
    return named ? theme.getPropertyValue(value).trim() : value;
  };

  const draw = (figure) => {
    const theme = getComputedStyle(document.documentElement);
    const place = document.getElementById(`plot-${figure.name}`);
    return Plotly.react(place, themed(figure.data, theme, ""), themed(figure.layout, theme, ""), config);
  };

  const offerToSave = (figure) => {
    const place = document.getElementById(`plot-${figure.name}`);
    const button = document.createElement("button");
    button.className = "save";
    button.textContent = "Save as SVG";
    button.addEventListener("click", () =>
      Plotly.downloadImage(place, {
        format: "svg",
        filename: figure.name,
        width: place.clientWidth,
        height: place.clientHeight,
      }),
    );
    place.closest("figure").prepend(button);
  };

  // One after the other, so that the page can be read while figures are drawn.
  const drawAll = () => figures.reduce((before, figure) => before.then(() => draw(figure)), Promise.resolve());

  figures.forEach(offerToSave);
  drawAll().then(() => document.documentElement.setAttribute("data-drawn", ""));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
