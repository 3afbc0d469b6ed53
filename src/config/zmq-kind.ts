import { isIP, isIPv4 } from "node:net";
import type { Kind, Read } from "./kinds.ts";
import { typeName } from "./kinds.ts";
import { isHostName } from "./listen-address.ts";
import { quoteText } from "./problems.ts";

const PORT_MAX = 65_535;
/** `sun_path` holds 108 bytes with the NUL at its end (unix(7)). */
const SOCKET_PATH_BYTES_MAX = 107;
const TCP = /^tcp:\/\/(?:\[([^\]]+)\]|([^[\]:/]+)):([0-9]{1,5})$/;

/** `tcp://host:port` or `ipc:///path`; `*` as a host only where one may listen on all addresses. */
export function zmqKind({
  mayListen,
  example,
}: {
  readonly mayListen: boolean;
  readonly example: string;
}): Kind<string> {
  const instead = `write it as in "${example}", or "ipc:///run/kv.sock"`;
  const refuse = (what: string): Read<string> => ({ ok: false, what, instead });
  return {
    name: "ZMQ endpoint",
    range: "tcp://, a host and a port; or ipc:// and the path of a socket",
    read(raw) {
      if (typeof raw !== "string") return refuse(`is ${typeName(raw)}, not an endpoint`);
      const is = `is ${quoteText(raw)}`;
      if (raw.startsWith("ipc://")) {
        const path = raw.slice("ipc://".length);
        const bytes = Buffer.byteLength(path);
        const fits = path.startsWith("/") && !path.includes("\0") && bytes <= SOCKET_PATH_BYTES_MAX;
        return fits ? { ok: true, value: raw } : refuse(`${is}, which names no socket`);
      }
      const match = TCP.exec(raw);
      if (match === null) return refuse(`${is}, which is no ZMQ endpoint`);
      const [, bracketed, plain = "", digits] = match;
      const port = Number(digits);
      if (port < 1 || port > PORT_MAX) return refuse(`${is}; ports go from 1 to ${PORT_MAX}`);
      if (plain === "*" && !mayListen) return refuse(`${is}: an engine is at one address`);
      const isPlain = plain === "*" || isIPv4(plain) || isHostName(plain);
      if (bracketed === undefined ? !isPlain : isIP(bracketed) !== 6)
        return refuse(`${is}, which holds no address or host name`);
      return { ok: true, value: raw };
    },
    write: (endpoint) => endpoint,
  };
}

/** The same endpoint of another rank: engines count the port up, and know no ranks of a socket. */
export function zmqOfRank(endpoint: string, rank: number): string {
  if (rank === 0) return endpoint;
  const [, before, port] = /^(.*:)([0-9]+)$/.exec(endpoint)!;
  return `${before}${Number(port) + rank}`;
}
