// Keeps a page as its server knows it: asks for what has changed, and puts that in place.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("live-data").textContent);
  const status = document.getElementById("live");
  const PERIOD_MS = 500;
  const HIDDEN_MS = 10000;
  let version = page.version;
  let changed = Date.now();
  let timer = 0;
  let isAsking = false;

  // What page.js fills is not the server's.
  const isOurs = (node) => node.nodeType === 1
    && (node.matches(".plot, .numbers, #steps-shown, #figure-timeline > h3, #figure-timeline > .legend"));
  const alike = (one, other) => one.nodeName === other.nodeName && one.id === other.id;
  const morph = (old, now) => {
    if (old.nodeType !== 1) {
      if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
      return;
    }
    if (isOurs(old) || old.isEqualNode(now)) return;
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value && !(name === "class" && old.matches("figure"))) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && !["open", "class"].includes(name)) old.removeAttribute(name);
    const olds = [...old.childNodes].filter((one) => !(one.nodeType === 1 && one.matches(".numbers")));
    const nows = [...now.childNodes];
    nows.forEach((one, at) => {
      if (!olds[at]) old.append(one);
      else if (alike(olds[at], one)) morph(olds[at], one);
      else olds[at].replaceWith(one);
    });
    olds.slice(nows.length).forEach((one) => one.remove());
  };
  const put = (name, html) => {
    const old = document.getElementById(name);
    const now = new DOMParser().parseFromString(html, "text/html").getElementById(name);
    if (old && now) morph(old, document.adoptNode(now));
  };

  const draw = (events) => {
    const doc = globalThis.Bokeh?.documents[0];
    if (!doc || !events.length) return;
    const steps = doc.get_model_by_name("steps");
    const [low, high] = steps?.bounds ?? [];
    const isZoomed = steps && (steps.start !== low || steps.end !== high);
    const kept = events.filter((one) => !(isZoomed && one.model.id === "steps" && ["start", "end"].includes(one.attr)));
    kept.sort((one, other) => (other.attr === "bounds") - (one.attr === "bounds")); // a range ends within its bounds
    doc.apply_json_patch({ events: kept });
  };

  const apply = (state) => {
    if (state.moved) {
      location.replace(state.moved + location.hash);
      return;
    }
    if (state.epoch && state.epoch !== page.epoch) {
      sessionStorage.setItem("scroll " + location.pathname, scrollY);
      location.reload();
      return;
    }
    if (state.version > version) {
      draw(state.events);
      Object.entries(state.html).forEach(([name, html]) => put(name, html));
      document.dispatchEvent(new CustomEvent("page-data", { detail: state }));
      version = state.version;
      changed = Date.now();
    }
    if (state.now !== undefined) put("now", state.now);
    const age = Math.round((Date.now() - changed) / 1000);
    const news = document.getElementById("now")?.hidden ? "Nothing is going on." : `Live; last news ${age < 2 ? "now" : `${age} s ago`}.`;
    say(state.said || news, Boolean(state.said && page.epoch));
  };
  const say = (text, isLost) => {
    status.textContent = text;
    status.classList.toggle("lost", isLost);
  };
  const ask = async () => {
    if (isAsking) return;
    isAsking = true;
    clearTimeout(timer);
    try {
      const answer = await fetch(`${page.url}?epoch=${page.epoch}&since=${version}`, { cache: "no-store", signal: AbortSignal.timeout(30000) });
      if (answer.ok) apply(await answer.json());
      else say(answer.status === 403 ? "The server wants the address with its token, which otel-rl view printed." : await answer.text(), true);
    } catch (error) {
      if (!["TypeError", "TimeoutError", "AbortError", "NetworkError"].includes(error.name)) throw error;
      say("The server does not answer: otel-rl view has ended, or the connection is lost. This page goes on when it answers.", true);
    } finally {
      isAsking = false;
      timer = setTimeout(ask, document.hidden ? HIDDEN_MS : PERIOD_MS);
    }
  };

  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  const key = "scroll " + location.pathname;
  const scroll = sessionStorage.getItem(key);
  const begin = () => {
    if (scroll !== null) scrollTo(0, Number(scroll));
    sessionStorage.removeItem(key);
    ask();
  };
  const isReady = () => document.documentElement.dataset.ready || !document.getElementById("data");
  const start = () => (isReady() ? begin() : setTimeout(start, 50));
  start();
})();
