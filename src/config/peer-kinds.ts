import { isIP, isIPv4 } from "node:net";
import { isWorkerId, publicUserKey, type WorkerId } from "../core/index.ts";
import {
  isHostName,
  isLinkLocal,
  LINK_LOCAL_INSTEAD,
  type ListenAddress,
  listenKind,
} from "./address-kinds.ts";
import { choiceKind, type Kind, namesKind, type Read, typeName } from "./kinds.ts";
import { quoteText } from "./problems.ts";

/** Transports of this version, in the order to try them. */
const TRANSPORT_NAMES = ["rdma", "stream", "quic"] as const;
export type TransportWord = (typeof TRANSPORT_NAMES)[number];

const list = namesKind(TRANSPORT_NAMES);

/** `auto`, or some of the transports in the order to try them. */
export const transportsKind: Kind<readonly TransportWord[] | "auto"> = {
  name: "auto or list of words",
  range: `"auto", or ${TRANSPORT_NAMES.join(", ")} separated by commas`,
  read(raw) {
    if (raw === "auto") return { ok: true, value: raw };
    const read = list.read(raw);
    const instead = `use "auto", or some of ${TRANSPORT_NAMES.join(", ")} separated by commas`;
    if (!read.ok) return { ...read, instead };
    if (read.value.length === 0) return { ok: false, what: "names no transport", instead };
    return { ok: true, value: read.value as readonly TransportWord[] };
  },
  write: (names) => (names === "auto" ? names : names.join(",")),
};

function refuseLinkLocal(host: string): { ok: false; what: string; instead: string } {
  const what = `is ${quoteText(host)}, an address valid within one network only`;
  return { ok: false, what, instead: LINK_LOCAL_INSTEAD };
}

/** An address with a port, or the word `off`. */
export const listenOrOffKind: Kind<ListenAddress | "off"> = {
  name: `${listenKind.name} or off`,
  range: `"off", or ${listenKind.range}`,
  read(raw) {
    if (raw === "off") return { ok: true, value: raw };
    const bracketed = typeof raw === "string" ? /^\[(.*)\]:/.exec(raw)?.[1] : undefined;
    if (bracketed !== undefined && isLinkLocal(bracketed)) return refuseLinkLocal(bracketed);
    const read = listenKind.read(raw);
    return read.ok ? read : { ...read, instead: `${read.instead}; or "off"` };
  },
  write: (address) => (address === "off" ? address : listenKind.write(address)),
};

/** An IP address, without brackets, or a host name. */
export const hostKind: Kind<string> = {
  name: "host",
  range: "an IP address without brackets, or a host name",
  read(raw) {
    const instead = 'write an address or a name alone, as in "10.0.0.1" or "gpu-01.example.org"';
    if (typeof raw !== "string") {
      return { ok: false, what: `is ${typeName(raw)}, not a host`, instead };
    }
    if (isIP(raw) !== 0 && isLinkLocal(raw)) return refuseLinkLocal(raw);
    if (isIP(raw) !== 0 || isHostName(raw)) return { ok: true, value: raw };
    return { ok: false, what: `is ${quoteText(raw)}, which is not a host`, instead };
  },
  write: (host) => host,
};

const NAMESPACES_MAX = 256;
const NAMESPACE = /^[0-9a-f]{64}$/;

/** Namespace keys in hex, separated by commas, or the word `any`. */
export const namespacesKind: Kind<readonly string[] | "any"> = {
  name: "any or list of namespaces",
  range: `"any", or up to ${NAMESPACES_MAX} namespace keys of 64 hex digits, separated by commas`,
  read(raw) {
    const instead = 'use "any", or keys as `hearth ctl status` shows them, with commas between';
    if (typeof raw !== "string") {
      return { ok: false, what: `is ${typeName(raw)}, not a string`, instead };
    }
    if (raw === "any") return { ok: true, value: raw };
    const keys = raw.split(",").map((key) => key.trim().toLowerCase());
    const wrong = keys.find((key) => !NAMESPACE.test(key));
    if (wrong !== undefined) {
      return {
        ok: false,
        what: `names ${quoteText(wrong)}, which is not a namespace key`,
        instead,
      };
    }
    if (keys.length > NAMESPACES_MAX) {
      return { ok: false, what: `names more than ${NAMESPACES_MAX} namespaces`, instead };
    }
    return { ok: true, value: Object.freeze([...new Set(keys)]) };
  },
  write: (keys) => (keys === "any" ? keys : keys.join(",")),
};

const RDMA_DEVICES_MAX = 16;
const RDMA_DEVICE = /^[A-Za-z0-9_.-]{1,63}$/;

/** Names of devices, separated by commas, or the word `any`. */
export const rdmaDevicesKind: Kind<readonly string[] | "any"> = {
  name: "any or list of devices",
  range: `"any", or up to ${RDMA_DEVICES_MAX} names of devices, separated by commas`,
  read(raw) {
    const instead = 'use "any", or names as in "mlx5_0,mlx5_1"';
    if (typeof raw !== "string") {
      return { ok: false, what: `is ${typeName(raw)}, not a string`, instead };
    }
    if (raw === "any") return { ok: true, value: raw };
    const names = [...new Set(raw.split(",").map((name) => name.trim()))];
    const wrong = names.find((name) => !RDMA_DEVICE.test(name));
    if (wrong !== undefined) {
      return { ok: false, what: `names ${quoteText(wrong)}, which is not a device`, instead };
    }
    if (names.length > RDMA_DEVICES_MAX) {
      return { ok: false, what: `names more than ${RDMA_DEVICES_MAX} devices`, instead };
    }
    return { ok: true, value: Object.freeze(names) };
  },
  write: (names) => (names === "any" ? names : names.join(",")),
};

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

const PEERS_MAX = 1_024;
const PORT_MAX = 65_535;
const PEER =
  /^([^@]*)@(?:\[([^\]]+)\]|([^[\]:@/]*)):([0-9]{0,5})(?:\/([0-9]{0,5}))?(?:\/([0-9]{1,5}))?$/;
const PEER_FORM =
  'write it as in "gpu-02@10.0.0.2:7172/7173/7175": worker, host, ports of stream/quic/rdma';

type Refuse = (what: string) => { ok: false; what: string; instead: string };
const badPeer: Refuse = (what) => ({ ok: false, what, instead: PEER_FORM });

function readPeer(text: string): Read<ListedPeer> {
  const match = PEER.exec(text);
  if (match === null) return badPeer(`names ${quoteText(text)}, which is not a peer`);
  const [, worker = "", bracketed, plain, ...digits] = match;
  if (!isWorkerId(worker)) return badPeer(`names ${quoteText(text)} without a worker id`);
  const host = bracketed ?? plain ?? "";
  if (bracketed !== undefined && isLinkLocal(bracketed)) {
    const what = `names ${quoteText(text)}, which has an address valid within one network only`;
    return { ok: false, what, instead: LINK_LOCAL_INSTEAD };
  }
  const isHost = bracketed === undefined ? isIPv4(host) || isHostName(host) : isIP(host) === 6;
  if (!isHost) return badPeer(`holds an invalid address or host name: ${quoteText(host)}`);
  const ports = digits.map(portOf);
  if (ports.includes(undefined)) {
    return badPeer(`names ${quoteText(text)}; ports go from 1 to ${PORT_MAX}`);
  }
  const [streamPort = null, quicPort = null, rdmaPort = null] = ports;
  if (ports.every((port) => port === null))
    return badPeer(`names ${quoteText(text)} without a port`);
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
export const peerListKind: Kind<readonly ListedPeer[]> = {
  name: "list of peers",
  range: "worker@host:stream/quic/rdma, separated by commas; at least one port",
  read(raw) {
    if (typeof raw !== "string") return badPeer(`is ${typeName(raw)}, not a string`);
    const texts = raw.split(",").map((text) => text.trim());
    if (texts.length > PEERS_MAX) return badPeer(`names more than ${PEERS_MAX} peers`);
    const peers = new Map<string, ListedPeer>();
    for (const text of texts) {
      const read = readPeer(text);
      if (!read.ok) return read;
      if (peers.has(read.value.worker)) return badPeer(`names ${read.value.worker} twice`);
      peers.set(read.value.worker, read.value);
    }
    return { ok: true, value: Object.freeze([...peers.values()]) };
  },
  write: (peers) => peers.map(formatPeer).join(","),
};

/** An issuer of commands that must prove its name. */
export interface ListedIssuer {
  readonly name: string;
  readonly role: "operate" | "purge";
  /** Public nkey (`U...`); null: the issuer publishes on its own subject. */
  readonly key: string | null;
}

const ISSUERS_MAX = 256;
const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
const SUBJECT = "subject";
const ISSUER_FORM =
  'write it as in "router-1 operate subject, ops purge UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJ' +
  'CPQTT2M7NLCNF4": a name, a role and how it is proved';

function badIssuer(what: string): { ok: false; what: string; instead: string } {
  return { ok: false, what, instead: ISSUER_FORM };
}

function readIssuer(text: string): Read<ListedIssuer> {
  const words = text.split(/\s+/);
  const [name = "", role, proof = ""] = words;
  if (words.length !== 3) return badIssuer(`names ${quoteText(text)}, which is not three words`);
  if (!NAME.test(name)) return badIssuer(`names the issuer ${quoteText(name)}`);
  if (role !== "operate" && role !== "purge") {
    return badIssuer(`gives ${name} the role ${quoteText(role ?? "")}, not operate or purge`);
  }
  if (proof === SUBJECT) return { ok: true, value: Object.freeze({ name, role, key: null }) };
  if (publicUserKey(proof) !== null) {
    return { ok: true, value: Object.freeze({ name, role, key: proof }) };
  }
  return badIssuer(`gives ${name} neither "subject" nor a user's public nkey (U...)`);
}

/** `router-1 operate subject, ops purge U...`; or `none`. */
export const issuerListKind: Kind<readonly ListedIssuer[]> = {
  name: "list of issuers",
  range:
    "NAME ROLE PROOF, separated by commas, or none; ROLE is operate or purge, PROOF is subject " +
    "or a public nkey (U...)",
  read(raw) {
    if (typeof raw !== "string") return badIssuer(`is ${typeName(raw)}, not a string`);
    if (raw.trim() === "none") return { ok: true, value: Object.freeze([]) };
    const texts = raw.split(",").map((text) => text.trim());
    if (texts.length > ISSUERS_MAX) return badIssuer(`names more than ${ISSUERS_MAX} issuers`);
    const issuers = new Map<string, ListedIssuer>();
    for (const text of texts) {
      const read = readIssuer(text);
      if (!read.ok) return read;
      if (issuers.has(read.value.name)) return badIssuer(`names ${read.value.name} twice`);
      issuers.set(read.value.name, read.value);
    }
    return { ok: true, value: Object.freeze([...issuers.values()]) };
  },
  write(issuers) {
    const texts = issuers.map(({ name, role, key }) => `${name} ${role} ${key ?? SUBJECT}`);
    return texts.length === 0 ? "none" : texts.join(", ");
  },
};
