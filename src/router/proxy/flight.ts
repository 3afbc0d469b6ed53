import type { Router } from "../index.ts";
import type { ProxyObserver, RequestEnd } from "./observer.ts";

/** Output is told in steps of so many tokens: a block of the usual size. */
const OUTPUT_STEP = 16;

/** What the router remembers of one request, told once each whatever happens. */
export class Flight {
  readonly id: string;
  readonly #router: Router;
  readonly #observers: ReadonlySet<ProxyObserver>;
  #isRouted = false;
  #isPrefilled = false;
  #isEnded = false;
  #toldTokens = 0;

  constructor(id: string, router: Router, observers: ReadonlySet<ProxyObserver>) {
    [this.id, this.#router, this.#observers] = [id, router, observers];
  }

  /** The router has given it a worker. */
  routed(): void {
    this.#isRouted = true;
    this.#isPrefilled = false;
    this.#toldTokens = 0;
    if (this.#isEnded) this.leave();
  }

  prefilled(): void {
    if (this.#isPrefilled || !this.#isRouted) return;
    this.#isPrefilled = true;
    this.#router.markPrefillComplete(this.id);
  }

  /** Output so far. */
  output(tokens: number): void {
    if (!this.#isRouted || tokens - this.#toldTokens < OUTPUT_STEP) return;
    this.#toldTokens = tokens;
    this.#router.output(this.id, tokens);
  }

  /** It gives up the worker it has. */
  leave(): void {
    if (!this.#isRouted) return;
    this.#isRouted = false;
    this.#router.free(this.id);
  }

  /** Nothing more comes of it. */
  end(end: RequestEnd): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.leave();
    for (const observer of this.#observers) observer.ended?.(this.id, end);
  }

  get isEnded(): boolean {
    return this.#isEnded;
  }
}
