
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [form, from, to, title, result] = ["form", "from", "to", "title", "result"].map(
  (id) => document.getElementById(id));
const ids = data.nights.map(([id]) => id);

for (const select of [from, to]) {
  for (const [id, label] of [...data.nights].reverse()) select.append(new Option(label, id));
  select.addEventListener("change", () => { location.hash = `${from.value}..${to.value}`; });
}

// what stood since a night at or before this one
const at = (entries, night) => entries.filter(([since]) => since <= night).at(-1);
const known = (entry) => entry && entry.length > 2;
const differ = (a, b) => a !== null && b !== null && a !== b;

function changes(a, b) {
  const found = new Map();
  const add = (kind, what, cell) => {
    const key = JSON.stringify([kind, what]);
    found.set(key, [...(found.get(key) || []), ...(cell === undefined ? [] : [cell])]);
  };
  for (const [name, entries] of data.cells) {
    const old = at(entries, a), now = at(entries, b);
    if (!known(old) && !known(now)) continue;
    if (!known(now)) { add("cells", "removed", name); continue; }
    const [, state, versions, , digest, key] = now;
    if (!known(old)) { add("cells", `new (${state})`, name); continue; }
    if (old[1] !== state) add("states", `${old[1]} → ${state}`, name);
    const was = new Map(data.versions[old[2]]), is = new Map(data.versions[versions]);
    for (const axis of new Set([...is.keys(), ...was.keys()])) {
      const before = was.get(axis) ?? "none", after = is.get(axis) ?? "none";
      if (was.size && is.size && before !== after)
        add("versions", `${axis} ${before} → ${after}`, name);
    }
    if (state === "green" && (differ(old[4], digest) || differ(old[5], key))) {
      add("images", "new image", name);
    }
  }
  for (const [patch, version, states] of data.patches) {
    const old = at(states, a), now = at(states, b);
    if (old?.[1] === now?.[1]) continue;
    const arrow = old && now ? `${old[1]} → ${now[1]}` : (now || [0, "no longer measured"])[1];
    add("patches", `${patch} on ${version}: ${arrow}`);
  }
  const order = ["states", "versions", "images", "cells", "patches"];
  return [...found].map(([key, cells]) => [...JSON.parse(key), cells])
    .sort((x, y) => order.indexOf(x[0]) - order.indexOf(y[0]));
}

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);  // strings become text, never markup
  return made;
}

function shown(what, cells) {
  const count = cells.length > 6 ? ` (${cells.length} cells)` : "";
  return cells.length ? `${what}${count}: ${cells.join(", ")}` : what;
}

function show() {
  const [a, b] = location.hash.slice(1).split("..");
  if (ids.includes(a)) from.value = a;
  if (ids.includes(b)) to.value = b;
  const found = changes(ids.indexOf(from.value), ids.indexOf(to.value));
  title.textContent = `${from.selectedOptions[0].text} → ${to.selectedOptions[0].text}`;
  const kinds = [...new Set(found.map(([kind]) => kind))];
  result.replaceChildren(found.length === 0 ? element("p", "Nothing changed.") : element("ul",
    ...kinds.map((kind) => element("li", element("strong", kind), element("ul",
      ...found.filter(([own]) => own === kind).map(([, what, cells]) =>
        element("li", shown(what, cells))))))));
}

from.value = ids[Math.max(ids.length - 2, 0)];
to.value = ids[ids.length - 1];
form.hidden = title.hidden = false;
addEventListener("hashchange", show);
show();
