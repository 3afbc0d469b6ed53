import { isIP } from "node:net";
import { choiceKind, type Kind, namesKind, typeName } from "./kinds.ts";
import {
  isHostName,
  isLinkLocal,
  LINK_LOCAL_INSTEAD,
  type ListenAddress,
  listenKind,
} from "./listen-address.ts";
import { quoteText } from "./problems.ts";

/** Ways to move blocks that this version has, the one that is tried first in front. */
const TRANSPORT_NAMES = ["rdma", "stream", "quic"] as const;
export type TransportWord = (typeof TRANSPORT_NAMES)[number];

const list = namesKind(TRANSPORT_NAMES);

/** `auto`, or some of the names in the order in which they are tried. */
export const transportsKind: Kind<readonly TransportWord[] | "auto"> = {
  name: "auto or list of words",
  range: `"auto", or ${TRANSPORT_NAMES.join(", ")} with commas between them`,
  read(raw) {
    if (raw === "auto") return { ok: true, value: raw };
    const read = list.read(raw);
    const instead = `use "auto", or some of ${TRANSPORT_NAMES.join(", ")} with commas between`;
    if (!read.ok) return { ...read, instead };
    if (read.value.length === 0) return { ok: false, what: "names no transport", instead };
    return { ok: true, value: read.value as readonly TransportWord[] };
  },
  write: (names) => (names === "auto" ? names : names.join(",")),
};

function refuseLinkLocal(host: string): { ok: false; what: string; instead: string } {
  const what = `is ${quoteText(host)}, an address that means something within one network alone`;
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
    return { ok: false, what: `is ${quoteText(raw)}, which is no host`, instead };
  },
  write: (host) => host,
};

const NAMESPACES_MAX = 256;
const NAMESPACE = /^[0-9a-f]{64}$/;

/** Namespace keys in hex with commas between them, or the word `any`. */
export const namespacesKind: Kind<readonly string[] | "any"> = {
  name: "any or list of namespaces",
  range: `"any", or up to ${NAMESPACES_MAX} namespace keys of 64 hex digits with commas between`,
  read(raw) {
    const instead = 'use "any", or keys as `hearth ctl status` shows them, with commas between';
    if (typeof raw !== "string") {
      return { ok: false, what: `is ${typeName(raw)}, not a string`, instead };
    }
    if (raw === "any") return { ok: true, value: raw };
    const keys = raw.split(",").map((key) => key.trim().toLowerCase());
    const wrong = keys.find((key) => !NAMESPACE.test(key));
    if (wrong !== undefined) {
      return { ok: false, what: `names ${quoteText(wrong)}, no namespace key`, instead };
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

/** Names of devices with commas between them, or the word `any`. */
export const rdmaDevicesKind: Kind<readonly string[] | "any"> = {
  name: "any or list of devices",
  range: `"any", or up to ${RDMA_DEVICES_MAX} names of devices with commas between them`,
  read(raw) {
    const instead = 'use "any", or names as in "mlx5_0,mlx5_1"';
    if (typeof raw !== "string") {
      return { ok: false, what: `is ${typeName(raw)}, not a string`, instead };
    }
    if (raw === "any") return { ok: true, value: raw };
    const names = [...new Set(raw.split(",").map((name) => name.trim()))];
    const wrong = names.find((name) => !RDMA_DEVICE.test(name));
    if (wrong !== undefined) {
      return { ok: false, what: `names ${quoteText(wrong)}, no device`, instead };
    }
    if (names.length > RDMA_DEVICES_MAX) {
      return { ok: false, what: `names more than ${RDMA_DEVICES_MAX} devices`, instead };
    }
    return { ok: true, value: Object.freeze(names) };
  },
  write: (names) => (names === "any" ? names : names.join(",")),
};

/** How payload on plain TCP is sealed. */
export const cipherKind = choiceKind(["aegis-128l", "aes-128-gcm"]);
