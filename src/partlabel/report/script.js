"use strict";
// The table of classes: sorted by a click on a heading, searched, filtered. Without this script it
// is a plain table. Nothing is read but the text of the cells.
(() => {
  const table = document.getElementById("class-table");
  window.addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const headings = Array.from(table.tHead.rows[0].cells);
  const search = document.getElementById("search");
  const filter = document.getElementById("filter");
  const words = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

  const number = (text) => {
    if (text === "never") return Infinity;
    const value = parseFloat(text.replace(/,/g, "").replace("\u2212", "-"));
    return Number.isNaN(value) ? null : value;
  };
  const keys = (column) =>
    new Map(rows.map((row) => {
      const cell = row.cells[column];
      return [row, column ? number(cell.textContent.trim()) : cell.textContent.trim()];
    }));

  const sort = (column, down) => {
    const key = keys(column);
    const order = [...rows].sort((a, b) => {
      const one = key.get(a), other = key.get(b);
      if (one === null || other === null) return (one === null) - (other === null);
      const sign = column ? one - other || 0 : words.compare(one, other);
      return down ? -sign : sign;
    });
    body.append(...order);
    headings.forEach((each, i) => {
      if (i === column) each.setAttribute("aria-sort", down ? "descending" : "ascending");
      else each.removeAttribute("aria-sort");
    });
  };

  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      sort(column, before ? before === "ascending" : column > 0);
    });
  });

  const plain = (text) => text.normalize("NFKC").toLowerCase();
  const names = new Map(rows.map((row) => [row, plain(row.cells[0].textContent)]));
  const show = () => {
    const wanted = plain(search.value.trim());
    const tag = filter.value;
    let count = 0;
    for (const row of rows) {
      const fits = names.get(row).includes(wanted) &&
        (!tag || (row.dataset.t || "").split(" ").includes(tag));
      row.hidden = !fits;
      count += fits;
    }
    const all = rows.length.toLocaleString("en");
    document.getElementById("shown").textContent =
      count === rows.length ? `${all} classes` : `${count.toLocaleString("en")} of ${all} classes`;
    document.getElementById("nothing").hidden = count > 0;
  };
  search.addEventListener("input", show);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; show(); }
  });
  filter.addEventListener("change", show);
  document.querySelector(".tools").hidden = false;
  show();
})();
