"use strict";
// Draws each chart of the page, in the colours of the page's style and of its dark variant.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, scrollZoom: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

  function template() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const steps = [1, 2, 3, 4, 5, 6, 7, 8].map((i) => color("--heat" + i));
    const scale = steps.map((step, i) => [i / 7, step]);
    const axis = { gridcolor: color("--line"), linecolor: color("--faint"),
      zerolinecolor: color("--faint"), ticks: "outside", tickcolor: color("--line") };
    return {
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: color("--ink"), family: "system-ui, sans-serif", size: 13 },
        colorway: [1, 2, 3, 4, 5, 6, 7, 8].map((i) => color("--series" + i)),
        colorscale: { sequential: scale },
        hoverlabel: { bgcolor: color("--panel"), bordercolor: color("--faint"),
          font: { color: color("--ink") }, align: "left" },
        modebar: { bgcolor: color("--panel"), color: color("--faint"),
          activecolor: color("--ink") },
        xaxis: axis, yaxis: axis,
      },
      data: { heatmap: [{ colorscale: scale, showscale: false }],
        bar: [{ marker: { line: { color: color("--ink"), width: 0.5 } } }] },
    };
  }

  // The values that arrow keys walk through: [curve][point], for a heat map [row][column].
  function grid(plot) {
    const first = plot.calcdata[0][0];
    return first.z ? Array.from(first.z, (row) => row.length)
      : plot.calcdata.map((points) => points.length);
  }

  const text = (name) => name.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");

  function spoken(plot, row, column) {
    const { xaxis, yaxis } = plot.layout, map = plot.calcdata[0][0].z;
    const short = (value) => typeof value === "number" ? +value.toPrecision(5) : value;
    if (map) {
      const { x, y } = plot.data[0];
      return text(`${yaxis.title.text} ${y[row]}, ${xaxis.title.text} ${x[column]}: `)
        + short(map[row][column]);
    }
    const trace = plot.data[row], named = trace.text ? `, ${trace.text[column]}` : "";
    return text(`${trace.name}${named}, ${xaxis.title.text} ${short(trace.x[column])}: `
      + `${yaxis.title.text} ${short(trace.y[column])}`);
  }

  function walk(plot, output) {
    const at = { row: 0, column: -1 };
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    plot.addEventListener("keydown", (event) => {
      if (event.target !== plot || !(event.key in steps)) return;
      event.preventDefault();
      const lengths = grid(plot), [down, right] = steps[event.key];
      at.row = Math.min(Math.max(at.row + down, 0), lengths.length - 1);
      at.column = Math.min(Math.max(at.column + right, 0), lengths[at.row] - 1);
      const isMap = Boolean(plot.calcdata[0][0].z);
      const point = isMap ? { curveNumber: 0, pointNumber: [at.row, at.column] }
        : { curveNumber: at.row, pointNumber: at.column };
      Plotly.Fx.hover(plot, [point]);
      output.textContent = spoken(plot, at.row, at.column);
    });
    plot.addEventListener("blur", () => { output.textContent = ""; Plotly.Fx.unhover(plot); });
  }

  function slide(figure, plot, frames) {
    const slider = figure.querySelector("input[type=range]");
    if (!slider) return;
    const label = figure.querySelector(".frame");
    slider.addEventListener("input", () => {
      const frame = frames[+slider.value];
      label.textContent = frame.label;
      slider.setAttribute("aria-valuetext", frame.label);
      Plotly.restyle(plot, { z: [frame.z] }, [0]);
    });
  }

  // The buttons are for the mouse: by keyboard they would be hundreds of stops on the way through.
  function passOver(plot) {
    for (const button of plot.querySelectorAll(".modebar-btn")) button.tabIndex = -1;
  }

  async function draw(figure) {
    const { data, layout, frames } = JSON.parse(figure.querySelector("script").textContent);
    const plot = figure.querySelector(".plot");
    await Plotly.newPlot(plot, data, { ...layout, template: template() }, config);
    passOver(plot);
    plot.on("plotly_afterplot", () => passOver(plot));
    walk(plot, figure.querySelector("output"));
    slide(figure, plot, frames);
    plot.dataset.drawn = "yes";
  }

  async function drawAll() {
    for (const figure of document.querySelectorAll("figure.chart")) {
      await draw(figure);
      await new Promise((next) => setTimeout(next));  // the page stays usable meanwhile
    }
    document.documentElement.dataset.drawn = "all";
  }

  dark.addEventListener("change", () => {
    for (const plot of document.querySelectorAll(".plot[data-drawn]"))
      Plotly.relayout(plot, { template: template() });
  });
  drawAll();
})();
