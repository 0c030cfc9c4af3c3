// The page that is shown: what it may draw, hear and call while it is there.

import { Problem } from "./api.js";
import { render } from "./dom.js";
import { onLive } from "./live.js";

export class View {
  #root;
  #draw = () => [];
  #leave = new AbortController();
  #pending = 0;

  /** A view that draws into `root`. `session` tells what the caller may do. */
  constructor(root, { segments, params, session }) {
    this.#root = root;
    this.segments = segments;
    this.params = params;
    this.session = session;
  }

  /** Aborted when the page is left. */
  get signal() {
    return this.#leave.signal;
  }

  /** True if the caller may change something. */
  get mayWrite() {
    return this.session.role === "write";
  }

  /** Has the page drawn by `draw`, now and whenever `redraw` is called. */
  show(draw) {
    this.#draw = draw;
    this.#drawNow();
  }

  /** Draws the page again, once, before the next frame. */
  redraw() {
    if (this.#pending || this.signal.aborted) return;
    this.#pending = requestAnimationFrame(() => {
      this.#pending = 0;
      if (!this.signal.aborted) this.#drawNow();
    });
  }

  /** Draws again with each overview, at least once a second. */
  redrawLive() {
    const stop = onLive(() => this.redraw());
    this.signal.addEventListener("abort", stop);
    this.every(1_000, () => this.redraw());
  }

  /** Calls `act` each `ms` while the page is there and visible. */
  every(ms, act) {
    const timer = setInterval(() => document.hidden || act(), ms);
    this.signal.addEventListener("abort", () => clearInterval(timer));
  }

  /**
   * Makes one look at a time out of `look`, which sets what the page shows: of two, the answer to the earlier question might
   * come last. `refresh` looks unless a look is under way. `load` looks anew, after what was done last.
   */
  looks(look) {
    let running = null;
    const refresh = () => (running ??= look().finally(() => { running = null; }));
    const load = async () => {
      await running;
      await refresh();
    };
    return { refresh, load };
  }

  /**
   * Runs `act` and draws what it changed. Returns its problem, if there was one; none if the page was left meanwhile.
   */
  async run(act) {
    try {
      await act(this.signal);
      return null;
    } catch (error) {
      if (this.signal.aborted || error.name === "AbortError") return null;
      if (!(error instanceof Problem)) console.error(error);
      return error;
    } finally {
      this.redraw();
    }
  }

  /** Ends everything that the page began. */
  close() {
    this.#leave.abort();
    cancelAnimationFrame(this.#pending);
  }

  #drawNow() {
    render(this.#root, this.#draw());
  }
}

