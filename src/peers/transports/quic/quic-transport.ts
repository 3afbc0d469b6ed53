import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { assert, type Clock, HearthError, messageOf } from "../../../core/index.ts";
import { type Native, NativeError, type Region } from "../../../native/index.ts";
import type {
  Endpoint as Address,
  Dialled,
  DialTarget,
  LinkFault,
  PeerServer,
  Transport,
  TransportCapabilities,
  TransportLog,
} from "../../transport.ts";
import type { Trust } from "../../trust.ts";
import { HeldLinks } from "../held-links.ts";
import { AskerLink } from "./asker-link.ts";
import { QUIC_LIMITS, type QuicLimits } from "./limits.ts";
import { Listener, socketAddress } from "./listener.ts";
import { Litter } from "./litter.ts";
import { type Endpoint, loadQuic, type QuicModule } from "./module.ts";
import { makeProof } from "./preface.ts";
import { type Ticket, Tickets } from "./tickets.ts";
import { askerOptions } from "./tls.ts";

export interface QuicOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly native: Native;
  readonly limits?: Partial<QuicLimits>;
}

const ANY_ADDRESS = { 4: "0.0.0.0", 6: "::" } as const;

/**
 * QUIC of the runtime: one connection to a peer, a stream for each request. Payload passes through
 * JavaScript, so it is slow where the network is fast; it needs one UDP port and nothing else.
 */
export class QuicTransport implements Transport {
  readonly name = "quic";
  readonly capabilities: TransportCapabilities = {
    encrypted: true,
    direct: false,
    early: true,
    oneSided: false,
  };
  unsupported: string | null = null;
  readonly #options: QuicOptions;
  readonly #limits: QuicLimits;
  readonly #litter: Litter;
  readonly #tickets: Tickets;
  readonly #links = new Set<AskerLink>();
  readonly #held: HeldLinks;
  readonly #endpoints = new Map<4 | 6, Endpoint>();
  #quic: QuicModule | null = null;
  #region: Region | null = null;
  #listener: Listener | null = null;
  #requests = 0;
  #closed: Promise<void> | null = null;

  constructor(options: QuicOptions) {
    this.#options = options;
    this.#limits = { ...QUIC_LIMITS, ...options.limits };
    const { trust, clock, log } = options;
    this.#held = new HeldLinks({ trust, clock, log, lookMs: this.#limits.judgeMs });
    this.#litter = new Litter(this.#limits.litterBytes);
    this.#tickets = new Tickets(options.clock);
  }

  get inboundLinks(): number {
    return this.#listener?.links ?? 0;
  }

  async register(region: Region): Promise<void> {
    assert(this.#region === null, "a region is registered once");
    this.#region = region;
    try {
      this.#quic = await loadQuic();
    } catch (thrown) {
      if (!(thrown instanceof HearthError)) throw thrown;
      this.unsupported = thrown.text;
    }
  }

  async listen(endpoint: Address, server: PeerServer): Promise<Address> {
    const { trust, clock, log } = this.#options;
    const quic = this.#quic;
    if (quic === null) throw new HearthError("UNSUPPORTED", this.unsupported ?? "no region");
    assert(this.#listener === null, "a transport listens once");
    this.#listener = new Listener({
      ...{ quic, trust, clock, log, server, address: endpoint, limits: this.#limits },
      region: this.#region!,
      litter: this.#litter,
      held: this.#held,
      onSocket: (port) => this.#tune(port),
      takeRequest: () => {
        if (this.#requests >= this.#limits.requestsMax) return false;
        this.#requests++;
        return true;
      },
      giveRequest: () => {
        this.#requests--;
      },
    });
    return { host: endpoint.host, port: await this.#listener.open() };
  }

  async dial(target: DialTarget, signal: AbortSignal): Promise<Dialled> {
    if (this.#closed !== null) return failed({ kind: "closed", why: "it is closed" });
    if (this.#quic === null) {
      return failed({ kind: "unsupported", why: this.unsupported ?? "no region is registered" });
    }
    const { promise: given, resolve } = Promise.withResolvers<LinkFault>();
    const giveUp = () => resolve({ kind: "aborted", why: "the dial was given up" });
    signal.addEventListener("abort", giveUp, { once: true });
    if (signal.aborted) giveUp();
    try {
      const address = await Promise.race([given, addressOf(target)]);
      if ("kind" in address) return failed(address);
      const link = await this.#connect(this.#quic, target, address);
      if (link.resumed) return { ok: true, link };
      const fault = await Promise.race([given, link.ready]);
      if (fault === null) return { ok: true, link };
      await link[Symbol.asyncDispose]();
      return failed(fault);
    } catch (thrown) {
      return failed({ kind: "unreachable", why: messageOf(thrown) });
    } finally {
      signal.removeEventListener("abort", giveUp);
    }
  }

  async #connect(quic: QuicModule, target: DialTarget, address: Numeric): Promise<AskerLink> {
    const { trust, clock } = this.#options;
    const { credentials } = trust;
    const limits = this.#limits;
    const name = `${target.worker}@${target.host}:${target.port}`;
    const ticket = this.#ticketFor(name, target);
    const endpoint = this.#endpointFor(quic, address.family);
    const session = await quic.connect(socketAddress(address.host, target.port), {
      ...askerOptions(credentials, limits),
      ...(ticket === null ? {} : { sessionTicket: ticket.ticket }),
      ...(ticket === null || ticket.token === null ? {} : { token: ticket.token }),
      endpoint,
    });
    const { cluster, worker: asker } = credentials;
    const link = new AskerLink({
      ...{ session, ticket, clock, limits, region: this.#region!, litter: this.#litter },
      proof: makeProof(credentials.key, { cluster, asker, holder: target.worker }),
      judge: (certificate) => trust.judge(certificate, target.worker),
      hold: (own) => this.#held.hold({ ...own, dialled: target.worker }),
    });
    const port = endpoint.address?.port;
    if (port !== undefined) this.#tune(port);
    this.#links.add(link);
    void link.ended.then(() => {
      this.#links.delete(link);
      const next = link.nextTicket;
      if (next === null || this.#closed !== null) this.#tickets.drop(name);
      // A ticket speaks for the certificate that we showed.
      else if (trust.credentials === credentials) this.#tickets.keep(name, next.ticket, next.ms);
    });
    return link;
  }

  /** A ticket of a peer whose certificate is still good. */
  #ticketFor(name: string, { worker }: DialTarget): Ticket | null {
    const ticket = this.#tickets.find(name);
    if (ticket === null || this.#options.trust.judge(ticket.certificate, worker).ok) return ticket;
    this.#tickets.drop(name);
    return null;
  }

  #endpointFor(quic: QuicModule, family: 4 | 6): Endpoint {
    const known = this.#endpoints.get(family);
    if (known !== undefined && !known.destroyed) return known;
    const endpoint = new quic.QuicEndpoint({ address: socketAddress(ANY_ADDRESS[family], 0) });
    endpoint.closed.catch(() => {});
    this.#endpoints.set(family, endpoint);
    return endpoint;
  }

  #tune(port: number): void {
    const { native, log } = this.#options;
    try {
      if (native.tuneUdp(port, this.#limits.socketBytes) > 0) return;
      log("warn", "a UDP socket was not found: a peer that dies may stall others", { port });
    } catch (thrown) {
      if (!(thrown instanceof NativeError)) throw thrown;
      log("warn", "a UDP socket cannot be tuned", { port, why: thrown.text });
    }
  }

  async reload(): Promise<void> {
    this.#tickets.clear();
    this.#held.judge();
    await this.#listener?.reload();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    const links = [...this.#links].map((link) => link[Symbol.asyncDispose]());
    await Promise.all([...links, this.#listener?.close()]);
    this.#tickets.clear();
    for (const endpoint of this.#endpoints.values()) endpoint.destroy();
  }
}

interface Numeric {
  readonly host: string;
  readonly family: 4 | 6;
}

/** Names are looked up by the system. */
async function addressOf({ host }: Address): Promise<Numeric> {
  const family = isIP(host);
  if (family !== 0) return { host, family: family as 4 | 6 };
  const found = await lookup(host);
  return { host: found.address, family: found.family as 4 | 6 };
}

function failed(fault: LinkFault): Dialled {
  return { ok: false, fault };
}
