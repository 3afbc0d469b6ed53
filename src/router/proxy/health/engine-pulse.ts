import type { Clock, Random } from "../../../core/index.ts";
import { connectSubscriber, type ZmtpSubscriber } from "../../../events/zmtp/index.ts";

/**
 * From the last sign of life to `isSilent`: at most `silenceMs`, one more `pingMs`, and `GRACE_MS`,
 * 3.9 s in all.
 */
const LIMITS = {
  pingMs: 700,
  silenceMs: 2_400,
  handshakeMs: 2_000,
  redialFirstMs: 100,
  redialMaxMs: 1_000,
};
/** A router that stood still itself finds connections silent, and makes them anew at once. */
const GRACE_MS = 700;

/**
 * The pulse of an engine's core process: pings on the socket where it publishes KV events, which
 * ZeroMQ's own thread answers whatever the engine computes. A long prefill is not silent; a stopped
 * process is, while its HTTP server goes on to say that all is well.
 */
export class EnginePulse implements AsyncDisposable {
  readonly endpoint: string;
  readonly #clock: Clock;
  readonly #onChange: () => void;
  readonly #subscriber: ZmtpSubscriber;
  #grace: Disposable | null = null;
  #isSilent = false;

  constructor(
    endpoint: string,
    { clock, random }: { readonly clock: Clock; readonly random: Random },
    onChange: () => void,
  ) {
    [this.endpoint, this.#clock, this.#onChange] = [endpoint, clock, onChange];
    this.#subscriber = connectSubscriber({
      // Without a topic no events come: there are others who follow them.
      ...{ endpoint, clock, random, limits: LIMITS, topics: [] },
      onMessage: () => undefined,
      onConnected: () => this.#set(false),
      onDisconnected: () => this.#wait(),
    });
  }

  get isHeard(): boolean {
    return this.#subscriber.state.status === "connected";
  }

  /** It was heard, and then no more, although nothing ended the connection. */
  get isSilent(): boolean {
    return this.#isSilent;
  }

  /** The process ended, or nobody listens there any more: this pulse says nothing. */
  get isGone(): boolean {
    const { status, connections, isHung } = this.#subscriber.state;
    return status !== "connected" && connections > 0 && !isHung && this.#grace === null;
  }

  /** The end of a silence by a refused connection is told by nobody. */
  look(): void {
    if (this.#isSilent && this.isGone) this.#set(false);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#grace?.[Symbol.dispose]();
    await this.#subscriber[Symbol.asyncDispose]();
  }

  #wait(): void {
    this.#grace ??= this.#clock.after(GRACE_MS, () => {
      this.#grace = null;
      const { status, isHung, connections } = this.#subscriber.state;
      // What was never heard may be behind a firewall.
      if (status === "connecting" && connections > 0) this.#set(isHung);
    });
  }

  #set(isSilent: boolean): void {
    if (!isSilent) {
      this.#grace?.[Symbol.dispose]();
      this.#grace = null;
    }
    if (this.#isSilent === isSilent) return;
    this.#isSilent = isSilent;
    this.#onChange();
  }
}
