"use strict";
// Everything here adds to a page that can be read without it: sorting, filtering, moving the histogram.
(() => {
  const FIRST_ROWS_ASCENDING = new Set(["position", "module", "name", "headroom"]);

  for (const root of document.querySelectorAll(".ampdoctor:not(.live)")) {
    root.classList.add("live");
    for (const form of root.querySelectorAll("form.controls")) {
      form.hidden = false;
      form.addEventListener("submit", (event) => event.preventDefault());
    }
    for (const table of root.querySelectorAll("table.sortable")) {
      sortable(table, table.closest("section"));
    }
    const histogram = root.querySelector("section.gradients");
    if (histogram) {
      movable(histogram);
    }
  }

  // ---- tables ----

  function sortable(table, section) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const most = Number(table.dataset.rows);
    const filter = section.querySelector("input.filter");
    const count = section.querySelector("output.count");
    const more = section.querySelector(".more");
    let all = rows.length <= 1.25 * most; // no button for a handful

    function show() {
      const wanted = filter ? filter.value.trim().toLowerCase() : "";
      const matching = rows.filter((row) => row.querySelector("th").textContent.toLowerCase().includes(wanted));
      const shown = new Set(wanted || all ? matching : matching.slice(0, most));
      for (const row of rows) {
        row.classList.toggle("mismatch", !matching.includes(row));
        row.classList.toggle("later", matching.includes(row) && !shown.has(row));
      }
      if (count) {
        count.textContent = (wanted ? `${matching.length} of ` : "") + `${rows.length} ${rows.length === 1 ? "layer" : "layers"}`;
      }
      more.hidden = all || wanted !== "";
      more.firstElementChild.textContent = `Show all ${rows.length}`;
    }

    for (const button of table.tHead.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        const header = button.parentElement;
        const key = button.dataset.key;
        const first = FIRST_ROWS_ASCENDING.has(key) ? "ascending" : "descending";
        const second = first === "ascending" ? "descending" : "ascending";
        const order = header.getAttribute("aria-sort") === first ? second : first;
        for (const other of table.tHead.querySelectorAll("th")) {
          other.removeAttribute("aria-sort");
        }
        header.setAttribute("aria-sort", order);
        rows.sort(comparison(key, order === "ascending" ? 1 : -1, "words" in button.dataset));
        body.append(...rows);
        show();
      });
    }
    more.firstElementChild.addEventListener("click", () => {
      all = true;
      show();
    });
    if (filter) {
      filter.addEventListener("input", show);
    }
    show();
  }

  function comparison(key, sign, words) {
    const cell = (row) => row.querySelector(`[data-key="${key}"]`);
    if (words) {
      return (a, b) => sign * cell(a).textContent.localeCompare(cell(b).textContent, "en", { numeric: true });
    }
    return (a, b) => {
      const [x, y] = [value(cell(a)), value(cell(b))];
      if (x === null || y === null) {
        return (x === null) - (y === null); // what was not measured stays last, either way
      }
      return x === y ? 0 : sign * (x < y ? -1 : 1);
    };
  }

  function value(cell) {
    const text = cell.dataset.value;
    const known = { "": null, inf: Infinity, nan: Infinity, "-inf": -Infinity };
    return text in known ? known[text] : Number(text);
  }

  // ---- the histogram ----

  function movable(section) {
    const data = JSON.parse(section.querySelector(".gradient-data").textContent);
    const slider = section.querySelector("input.scale");
    const layer = section.querySelector("select.layer");
    const figures = section.querySelectorAll("[data-figure]"); // zero, subnormal, normal, overflow
    const columns = [...section.querySelectorAll(".plot svg > g")];

    function draw() {
      const k = Number(slider.value);
      const bins = data.bins[Number(layer.value)];
      const heights = columns.map(() => 0);
      for (const [exponent, elements] of bins.counts) {
        const at = Math.min(Math.max(exponent + k, data.low), data.high);
        heights[at - data.low] += elements;
      }
      const most = Math.max(...heights) || 1;
      columns.forEach((column, i) => {
        const height = heights[i] ? Math.max((100 * heights[i]) / most, data.visible) : 0;
        const rect = column.querySelector(".column");
        rect.setAttribute("y", (100 - height).toFixed(2));
        rect.setAttribute("height", height.toFixed(2));
        const more = i === 0 ? " and less" : i === columns.length - 1 ? " and more" : "";
        column.querySelector("title").textContent = `2^${data.low + i}${more}: ${grouped(heights[i])}`;
      });
      figures.forEach((figure, i) => (figure.textContent = bins.figures[k][i]));
      const words = `2^${k}` + (k > 0 ? ` = ${grouped(2 ** k)}` : " = 1");
      for (const place of section.querySelectorAll(".scale-words")) {
        place.textContent = words;
      }
      slider.setAttribute("aria-valuetext", words);
    }

    for (const button of section.querySelectorAll(".jumps button")) {
      button.addEventListener("click", () => {
        slider.value = button.dataset.scale;
        draw();
      });
    }
    slider.addEventListener("input", draw);
    layer.addEventListener("change", draw);
    draw();
  }

  function grouped(n) {
    return n.toLocaleString("en-US");
  }

  // ---- paper ----

  // Once per document, however many reports it holds.
  if (!document.documentElement.dataset.ampdoctor) {
    document.documentElement.dataset.ampdoctor = "prints";
    let opened = [];
    window.addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll(".ampdoctor details:not([open]):not(.bulk)")];
      opened.forEach((details) => (details.open = true));
    });
    window.addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
  }
})();
