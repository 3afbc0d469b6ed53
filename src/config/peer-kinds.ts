import { isIP, isIPv4 } from "node:net";
import {
  choiceKind,
  isWorkerId,
  type Kind,
  listKind,
  orWord,
  patternKind,
  publicUserKey,
  quoteText,
  type Read,
  refuse,
  typeName,
  type WorkerId,
} from "../core/index.ts";
import {
  isHostName,
  isLinkLocal,
  LINK_LOCAL_INSTEAD,
  type ListenAddress,
  listenKind,
} from "./address-kinds.ts";

/** Transports of this version, in the order to try them. */
const TRANSPORT_NAMES = ["rdma", "stream", "quic"] as const;
export type TransportWord = (typeof TRANSPORT_NAMES)[number];

/** `auto`, or some of the transports in the order to try them. */
export const transportsKind: Kind<readonly TransportWord[] | "auto"> = orWord(
  "auto",
  "auto",
  listKind(choiceKind(TRANSPORT_NAMES), { items: "transports" }),
);

const refuseLinkLocal = (host: string) =>
  refuse(`is ${quoteText(host)}, an address valid within one network only`, LINK_LOCAL_INSTEAD);

/** An address with a port, or the word `off`. */
export const listenOrOffKind: Kind<ListenAddress | "off"> = orWord("off", "off", {
  ...listenKind,
  read(raw) {
    const bracketed = typeof raw === "string" ? /^\[(.*)\]:/.exec(raw)?.[1] : undefined;
    if (bracketed !== undefined && isLinkLocal(bracketed)) return refuseLinkLocal(bracketed);
    return listenKind.read(raw);
  },
});

/** An IP address, without brackets, or a host name. */
export const hostKind: Kind<string> = {
  name: "host",
  range: "an IP address without brackets, or a host name",
  read(raw) {
    const instead = 'write an address or a name alone, as in "10.0.0.1" or "gpu-01.example.org"';
    if (typeof raw !== "string") return refuse(`is ${typeName(raw)}, not a host`, instead);
    if (isIP(raw) !== 0 && isLinkLocal(raw)) return refuseLinkLocal(raw);
    if (isIP(raw) !== 0 || isHostName(raw)) return { ok: true, value: raw };
    return refuse(`is ${quoteText(raw)}, which is not a host`, instead);
  },
  write: (host) => host,
};

const namespaceKind = patternKind<string>({
  name: "namespace key",
  pattern: /^[0-9a-f]{64}$/i,
  words: "64 hex digits, as `hearth ctl status` shows them",
  example: "ab".repeat(32),
});

/** Namespace keys in hex, separated by commas, or the word `any`. */
export const namespacesKind: Kind<readonly string[] | "any"> = orWord(
  "any",
  "any",
  listKind(
    {
      ...namespaceKind,
      read(raw) {
        const read = namespaceKind.read(raw);
        return read.ok ? { ok: true, value: read.value.toLowerCase() } : read;
      },
    },
    { items: "namespaces", most: 256 },
  ),
);

/** Names of devices, separated by commas, or the word `any`. */
export const rdmaDevicesKind: Kind<readonly string[] | "any"> = orWord(
  "any",
  "any",
  listKind(
    patternKind<string>({
      name: "device",
      pattern: /^[A-Za-z0-9_.-]{1,63}$/,
      words: "a name as `ibv_devices` shows it",
      example: "mlx5_0",
    }),
    { items: "devices", most: 16 },
  ),
);

/** Ciphers of block data on TCP. */
export const cipherKind = choiceKind(["aegis-128l", "aes-128-gcm", "none"]);

/** A peer listed in the configuration. The port of a transport that it does not offer is null. */
export interface ListedPeer {
  readonly worker: WorkerId;
  /** An IP address or a host name, without brackets. */
  readonly host: string;
  readonly streamPort: number | null;
  readonly quicPort: number | null;
  readonly rdmaPort: number | null;
}

const PORT_MAX = 65_535;
const PEER =
  /^([^@]*)@(?:\[([^\]]+)\]|([^[\]:@/]*)):([0-9]{0,5})(?:\/([0-9]{0,5}))?(?:\/([0-9]{1,5}))?$/;
const PEER_FORM =
  'write it as in "gpu-02@10.0.0.2:7172/7173/7175": worker, host, ports of stream/quic/rdma';

function readPeer(text: string): Read<ListedPeer> {
  const is = `is ${quoteText(text)}`;
  const match = PEER.exec(text);
  if (match === null) return refuse(`${is}, which is not a peer`, PEER_FORM);
  const [, worker = "", bracketed, plain, ...digits] = match;
  if (!isWorkerId(worker)) return refuse(`${is} without a worker id`, PEER_FORM);
  const host = bracketed ?? plain ?? "";
  if (bracketed !== undefined && isLinkLocal(bracketed)) {
    return refuse(`${is}, an address valid within one network only`, LINK_LOCAL_INSTEAD);
  }
  const isHost = bracketed === undefined ? isIPv4(host) || isHostName(host) : isIP(host) === 6;
  if (!isHost) return refuse(`${is}, with an invalid address or host name`, PEER_FORM);
  const ports = digits.map(portOf);
  if (ports.includes(undefined)) {
    return refuse(`${is}; ports go from 1 to ${PORT_MAX}`, PEER_FORM);
  }
  const [streamPort = null, quicPort = null, rdmaPort = null] = ports;
  if (ports.every((port) => port === null)) return refuse(`${is} without a port`, PEER_FORM);
  return { ok: true, value: Object.freeze({ worker, host, streamPort, quicPort, rdmaPort }) };
}

/** Null: no port is given. Undefined: the port is invalid. */
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
export const peerListKind = listKind<ListedPeer>(
  {
    name: "peer",
    range: "worker@host:stream/quic/rdma with at least one port",
    read: (raw) => readPeer(String(raw)),
    write: formatPeer,
  },
  { items: "peers", id: ({ worker }) => worker },
);

/** An issuer of commands that must prove its name. */
export interface ListedIssuer {
  readonly name: string;
  readonly role: "operate" | "purge";
  /** Public nkey (`U...`); null: the issuer publishes on its own subject. */
  readonly key: string | null;
}

const ISSUER = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
const SUBJECT = "subject";
const ISSUER_FORM =
  'write it as in "router-1 operate subject, ops purge UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJ' +
  'CPQTT2M7NLCNF4": a name, a role and how it is proved';

function readIssuer(text: string): Read<ListedIssuer> {
  const words = text.split(/\s+/);
  const [name = "", role, proof = ""] = words;
  const is = `is ${quoteText(text)}`;
  if (words.length !== 3) return refuse(`${is}, which is not three words`, ISSUER_FORM);
  if (!ISSUER.test(name)) return refuse(`names the issuer ${quoteText(name)}`, ISSUER_FORM);
  if (role !== "operate" && role !== "purge") {
    const what = `gives ${name} the role ${quoteText(role ?? "")}, not operate or purge`;
    return refuse(what, ISSUER_FORM);
  }
  const isKey = publicUserKey(proof) !== null;
  if (proof === SUBJECT || isKey) {
    return { ok: true, value: Object.freeze({ name, role, key: isKey ? proof : null }) };
  }
  const what = `gives ${name} neither "subject" nor a user's public nkey (U...)`;
  return refuse(what, ISSUER_FORM);
}

/** `router-1 operate subject, ops purge U...`; or `none`. */
export const issuerListKind = listKind<ListedIssuer>(
  {
    name: "issuer",
    range: "NAME ROLE PROOF; ROLE is operate or purge, PROOF is subject or a public nkey (U...)",
    read: (raw) => readIssuer(String(raw)),
    write: ({ name, role, key }) => `${name} ${role} ${key ?? SUBJECT}`,
  },
  { items: "issuers", most: 256, empty: "none", id: ({ name }) => name },
);
