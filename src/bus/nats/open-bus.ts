import { HearthError, messageOf, type Random, randomBelow } from "../../core/index.ts";
import type { Bus } from "../bus.ts";
import type { Dial } from "../links/index.ts";
import { LinkBus } from "../links/index.ts";
import { BUS_LIMITS, type BusBasics, INBOX_PREFIX } from "../options.ts";
import { type CredentialFiles, readCredentials, readTls, type TlsFiles } from "./credentials.ts";
import { type Dialled, dialTcp } from "./dial-tcp.ts";
import { dialWs } from "./dial-ws.ts";
import { parseServers, type Server, serverLike } from "./servers.ts";

/** More servers than this are not remembered, whatever a cluster names. */
const OTHERS_MAX = 32;

export interface BusOptions extends BusBasics {
  /**
   * nats:// or tls:// (TCP), ws:// or wss:// (WebSocket); several of one sort separated by commas.
   * Credentials may stand before the `@`; they are never printed.
   */
  readonly url: string;
  /** Shown in the broker's own lists of connections. */
  readonly name: string;
  readonly credentials?: Partial<CredentialFiles>;
  readonly tls?: Partial<TlsFiles>;
}

/**
 * A bus over a NATS broker. Returns at once and connects in the background, again and again until
 * closed, however long the broker is down. Files are read anew with each connection, so that what
 * was renewed on disk is used from the next one on. Throws CONFIG_INVALID for a URL that is none.
 */
export function openBus(options: BusOptions): Bus {
  const list = parseServers(options.url);
  const dialOne = list.carrier === "ws" ? dialWs : dialTcp;
  const credentialFiles = { ...NO_CREDENTIALS, ...options.credentials };
  const tlsFiles = { ...NO_TLS, ...options.tls };
  const timeoutMs = options.limits?.connectMs ?? BUS_LIMITS.connectMs;
  let others: readonly Server[] = [];
  const dial: Dial = async (signal) => {
    const credentials = await readCredentials(credentialFiles, list.login);
    const tls = await readTls(tlsFiles);
    const { name, clock, random, inboxPrefix = INBOX_PREFIX } = options;
    const servers = [...shuffled(list.servers, random), ...shuffled(others, random)];
    const faults: string[] = [];
    for (const server of servers) {
      if (signal.aborted) break;
      const common = { name, inboxPrefix, credentials, tls, timeoutMs, clock, signal };
      const complain = (why: string) => {
        options.log?.("warn", "the NATS server complains", { server: server.url, why });
      };
      try {
        const dialled = await dialOne({ ...common, server, complain });
        others = othersOf(dialled, server, list.servers);
        return dialled.link;
      } catch (thrown) {
        faults.push(messageOf(thrown));
      }
    }
    throw new HearthError("DEADLINE", faults.join("; "));
  };
  return new LinkBus(dial, options, { isDurable: true });
}

const NO_CREDENTIALS: CredentialFiles = {
  tokenFile: null,
  userFile: null,
  credsFile: null,
  nkeyFile: null,
};
const NO_TLS: TlsFiles = { caFile: null, certFile: null, keyFile: null };

/** The servers of a cluster that the configuration does not name: tried after those it does. */
function othersOf(dialled: Dialled, like: Server, named: readonly Server[]): Server[] {
  const known = new Set(named.map(({ url }) => url));
  return dialled.others
    .slice(0, OTHERS_MAX)
    .map((address) => serverLike(like, address))
    .filter((server) => server !== null && !known.has(server.url)) as Server[];
}

function shuffled<T>(list: readonly T[], random: Random): T[] {
  const result = [...list];
  for (let at = result.length - 1; at > 0; at--) {
    const other = randomBelow(random, at + 1);
    [result[at], result[other]] = [result[other]!, result[at]!];
  }
  return result;
}
