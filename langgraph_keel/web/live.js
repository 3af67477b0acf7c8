"use strict";
// Updates this page when its content changes, unless a form was edited or a folded part opened.
const news = document.getElementById("news");
let touched = false;
document.addEventListener("input", () => { touched = true; });
document.addEventListener("click", (event) => {
  if (event.target.closest("main summary")) touched = true;
});
const say = (text) => { if (news.textContent !== text) news.textContent = text; };

async function look() {
  if (document.hidden) return;
  let next;
  try {
    const reply = await fetch(location.href, { cache: "no-store", redirect: "error" });
    if (!reply.ok) return say(`This page is out of date: the server answered ${reply.status}. Load it again.`);
    next = new DOMParser().parseFromString(await reply.text(), "text/html");
  } catch {
    return say("This page is out of date: the server cannot be reached.");
  }
  const before = document.querySelector("main"), now = next.querySelector("main");
  if (!now || before.innerHTML === now.innerHTML) return say("");
  if (touched) return say("Something has changed since. Load the page again to see it.");
  const focused = document.activeElement && document.activeElement.id;
  before.replaceWith(document.adoptNode(now));
  document.title = next.title;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  say("");
  if (!next.body.dataset.live) clearInterval(timer);
}
const timer = setInterval(look, 1000 * Number(document.body.dataset.live));
