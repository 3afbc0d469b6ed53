import { isIP, isIPv4 } from "node:net";
import { isWorkerId, type WorkerId } from "../core/index.ts";
import type { Kind, Read } from "./kinds.ts";
import { typeName } from "./kinds.ts";
import { isHostName, isLinkLocal, LINK_LOCAL_INSTEAD } from "./listen-address.ts";
import { quoteText } from "./problems.ts";

/** A host named in the configuration; a transport that it does not offer has port null. */
export interface ListedPeer {
  readonly worker: WorkerId;
  /** An IP address or a host name, without brackets. */
  readonly host: string;
  readonly streamPort: number | null;
  readonly quicPort: number | null;
  readonly rdmaPort: number | null;
}

const PEERS_MAX = 1_024;
const PORT_MAX = 65_535;
const PEER =
  /^([^@]*)@(?:\[([^\]]+)\]|([^[\]:@/]*)):([0-9]{0,5})(?:\/([0-9]{0,5}))?(?:\/([0-9]{1,5}))?$/;
const INSTEAD =
  'write it as in "gpu-02@10.0.0.2:7172/7173/7175": worker, host, ports of stream/quic/rdma';

type Refuse = (what: string) => { ok: false; what: string; instead: string };
const refuse: Refuse = (what) => ({ ok: false, what, instead: INSTEAD });

function readPeer(text: string): Read<ListedPeer> {
  const match = PEER.exec(text);
  if (match === null) return refuse(`names ${quoteText(text)}, which is no peer`);
  const [, worker = "", bracketed, plain, ...digits] = match;
  if (!isWorkerId(worker)) return refuse(`names ${quoteText(text)} without a worker id`);
  const host = bracketed ?? plain ?? "";
  if (bracketed !== undefined && isLinkLocal(bracketed)) {
    const what = `names ${quoteText(text)}, whose address means something within one network alone`;
    return { ok: false, what, instead: LINK_LOCAL_INSTEAD };
  }
  const isHost = bracketed === undefined ? isIPv4(host) || isHostName(host) : isIP(host) === 6;
  if (!isHost) return refuse(`holds no address or host name: ${quoteText(host)}`);
  const ports = digits.map(portOf);
  if (ports.includes(undefined)) {
    return refuse(`names ${quoteText(text)}; ports go from 1 to ${PORT_MAX}`);
  }
  const [streamPort = null, quicPort = null, rdmaPort = null] = ports;
  if (ports.every((port) => port === null)) return refuse(`names ${quoteText(text)}, no port`);
  return { ok: true, value: Object.freeze({ worker, host, streamPort, quicPort, rdmaPort }) };
}

/** Null: none is given. Undefined: it is none. */
function portOf(digits: string | undefined): number | null | undefined {
  if (digits === undefined || digits === "") return null;
  const port = Number(digits);
  return port >= 1 && port <= PORT_MAX ? port : undefined;
}

function formatPeer({ worker, host, ...ports }: ListedPeer): string {
  const place = host.includes(":") ? `[${host}]` : host;
  const all = [ports.streamPort, ports.quicPort, ports.rdmaPort];
  const last = all.findLastIndex((port) => port !== null);
  const written = all.slice(0, last + 1).map((port) => port ?? "");
  return `${worker}@${place}:${written.join("/")}`;
}

/** `gpu-02@10.0.0.2:7172/7173/7175,gpu-03@[fd00::3]:7172`. */
export const peerListKind: Kind<readonly ListedPeer[]> = {
  name: "list of peers",
  range:
    "worker@host:stream/quic/rdma with commas between them; ports of others than one may be left " +
    "out",
  read(raw) {
    if (typeof raw !== "string") return refuse(`is ${typeName(raw)}, not a string`);
    const texts = raw.split(",").map((text) => text.trim());
    if (texts.length > PEERS_MAX) return refuse(`names more than ${PEERS_MAX} peers`);
    const peers = new Map<string, ListedPeer>();
    for (const text of texts) {
      const read = readPeer(text);
      if (!read.ok) return read;
      if (peers.has(read.value.worker)) return refuse(`names ${read.value.worker} twice`);
      peers.set(read.value.worker, read.value);
    }
    return { ok: true, value: Object.freeze([...peers.values()]) };
  },
  write: (peers) => peers.map(formatPeer).join(","),
};
