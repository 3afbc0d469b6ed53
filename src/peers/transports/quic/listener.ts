import { HearthError, messageOf, type WorkerId } from "../../../core/index.ts";
import type { Endpoint as Address } from "../../transport.ts";
import type { Endpoint, QuicModule, Session } from "./module.ts";
import { type LinkHost, ServedLink } from "./served-link.ts";
import { serverOptions } from "./tls.ts";

export interface ListenerParts extends Omit<LinkHost, "onOver" | "whyNoMore"> {
  readonly quic: QuicModule;
  readonly address: Address;
  /** An endpoint has its socket. */
  onSocket(port: number): void;
}

/** One address may begin so many connections a second, and so many at once. */
const CREATION_RATE = 100;
const CREATION_BURST = 200;

const RETRY_MS = 500;

/**
 * Takes peers' connections. The runtime cannot give a listening socket other certificates, so new
 * ones need another socket at the same port: that is made as soon as no peer is connected, at the
 * latest when `reloadMs` have passed; then those that are left are told to come again.
 */
export class Listener {
  readonly #parts: ListenerParts;
  readonly #links = new Set<ServedLink>();
  #endpoint: Endpoint | null = null;
  #port: number;
  /** The certificates of the socket are not the latest. */
  #isStale = false;
  #swapping: Promise<void> | null = null;
  #deadline: Disposable | null = null;
  #isClosed = false;

  constructor(parts: ListenerParts) {
    this.#parts = parts;
    this.#port = parts.address.port;
  }

  /** Those whose certificate was found good. */
  get links(): number {
    return [...this.#links].filter((link) => link.peer !== null).length;
  }

  /** Throws CONFIG_INVALID where the address cannot be had. Resolves with the port. */
  async open(): Promise<number> {
    const { address, onSocket } = this.#parts;
    try {
      this.#endpoint = await this.#bind(this.#port);
    } catch (cause) {
      const what = `peers cannot be taken at ${address.host}:${this.#port}: ${messageOf(cause)}`;
      const fix = "let [peers].listen_quic name a free port of this host";
      throw new HearthError("CONFIG_INVALID", what, { cause, fix });
    }
    this.#port = this.#endpoint.address!.port;
    onSocket(this.#port);
    return this.#port;
  }

  /** A socket with the certificates as they are now; throws where there can be none. */
  async #bind(port: number): Promise<Endpoint> {
    const { quic, limits, trust, address } = this.#parts;
    const endpoint = new quic.QuicEndpoint({
      address: socketAddress(address.host, port),
      maxConnectionsTotal: limits.linksMax,
      maxConnectionsPerHost: limits.addressLinksMax,
      sessionCreationRate: CREATION_RATE,
      sessionCreationBurst: CREATION_BURST,
    });
    endpoint.closed.catch(() => {});
    try {
      const options = serverOptions(trust.credentials, limits);
      await quic.listen((session) => this.#take(session), { ...options, endpoint });
      // One that got no socket has no address, and closes with the reason.
      if (endpoint.address === undefined) await endpoint.closed;
      return endpoint;
    } catch (thrown) {
      endpoint.destroy();
      throw thrown;
    }
  }

  #take(session: Session): void {
    const host: LinkHost = {
      ...this.#parts,
      whyNoMore: (worker) => this.#whyNoMore(worker),
      onOver: (link) => this.#forget(link),
    };
    this.#links.add(new ServedLink(session, host));
  }

  #whyNoMore(worker: WorkerId): string | null {
    const { workerLinksMax } = this.#parts.limits;
    const own = [...this.#links].filter((link) => link.proven === worker);
    return own.length < workerLinksMax ? null : `${worker} has ${workerLinksMax} links`;
  }

  #forget(link: ServedLink): void {
    this.#links.delete(link);
    if (this.#isStale && this.#links.size === 0 && !this.#isClosed) void this.#swap();
  }

  /** Links that come from now on, or soon, see the latest certificates. */
  async reload(): Promise<void> {
    if (this.#isClosed) return;
    this.#isStale = true;
    if (this.#deadline === null && this.#links.size === 0) return this.#swap();
    const { clock, limits } = this.#parts;
    this.#deadline ??= clock.after(limits.reloadMs, () => void this.#swap());
  }

  #swap(): Promise<void> {
    this.#swapping ??= this.#renew().finally(() => {
      this.#swapping = null;
      // Others may have come meanwhile.
      if (this.#isStale) void this.reload();
    });
    return this.#swapping;
  }

  async #renew(): Promise<void> {
    const { log, clock } = this.#parts;
    this.#deadline?.[Symbol.dispose]();
    this.#deadline = null;
    this.#isStale = false;
    try {
      // Whether they are good shows at a port of its own, before the one that is used is given up.
      (await this.#bind(0)).destroy();
    } catch (thrown) {
      log("error", "the new certificates cannot be used", { why: messageOf(thrown) });
      return;
    }
    await this.#shut((link) => link.leave());
    if (this.#isClosed) return;
    try {
      await this.open();
    } catch (thrown) {
      log("error", "peers cannot be taken again", { why: messageOf(thrown) });
      this.#isStale = true;
      this.#deadline = clock.after(RETRY_MS, () => void this.#swap());
    }
  }

  /** Ends all links in the given way, and gives the port back. */
  async #shut(end: (link: ServedLink) => Promise<void>): Promise<void> {
    const endpoint = this.#endpoint;
    this.#endpoint = null;
    if (endpoint === null) return;
    endpoint.busy = true;
    await Promise.all([...this.#links].map(end));
    const { promise: late, resolve } = Promise.withResolvers<void>();
    using _timer = this.#parts.clock.after(this.#parts.limits.closeMs, resolve);
    await Promise.race([endpoint.close().catch(() => {}), late]);
    if (!endpoint.destroyed) endpoint.destroy();
    await endpoint.closed.catch(() => {});
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#deadline?.[Symbol.dispose]();
    await this.#swapping;
    await this.#shut((link) => link.close());
  }
}

/** As the runtime wants addresses. */
export function socketAddress(host: string, port: number): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}
