import { isIP, isIPv4 } from "node:net";
import {
  type Kind,
  listKind,
  patternKind,
  quoteText,
  type Read,
  refuse,
  typeName,
} from "../core/index.ts";

/** Listen address of a server. */
export interface ListenAddress {
  /** An IP address or a host name, without brackets. */
  readonly host: string;
  /** 0 picks a free port. */
  readonly port: number;
  /** Whether only this machine can reach it. */
  readonly loopback: boolean;
}

const HOST_NAME = /^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$/;
const PORT_MAX = 65_535;

/** Text of digits and dots only is an IPv4 address or a malformed one, never a host name. */
export function isHostName(text: string): boolean {
  return HOST_NAME.test(text) && !/^[0-9.]+$/.test(text);
}

/** Advice for link-local addresses. */
export const LINK_LOCAL_INSTEAD =
  'use an address that hosts of all networks know it by, as in "10.0.0.1" or "fd00::1"';
const LINK_LOCAL = /^fe[89ab][0-9a-f]:/i;

/**
 * Whether the address is link-local (`fe80::/10`) or has a zone (`%eth0`). Zone names differ
 * between hosts.
 */
export function isLinkLocal(host: string): boolean {
  return LINK_LOCAL.test(host) || (host.includes(":") && host.includes("%"));
}

/** Whether `host` is a loopback address or name. */
export function hostIsLoopback(host: string): boolean {
  if (isIPv4(host)) return host.startsWith("127.");
  return host === "::1" || host.toLowerCase() === "localhost";
}

/** `127.0.0.1:7171`, `[::1]:7171`, `localhost:7171`. */
export function formatListen(address: ListenAddress): string {
  return address.host.includes(":")
    ? `[${address.host}]:${address.port}`
    : `${address.host}:${address.port}`;
}

function readListen(raw: unknown): Read<ListenAddress> {
  const no = (what: string) =>
    refuse(what, 'write address and port, as in "127.0.0.1:7171" or "[::1]:7171"');
  if (typeof raw !== "string") return no(`is ${typeName(raw)}, not an address`);
  const match = /^(?:\[([0-9A-Fa-f:.]+)\]|([^[\]:]*)):([0-9]{1,5})$/.exec(raw);
  if (match === null) return no(`is ${quoteText(raw)}, which is not an address with a port`);
  const [, bracketed, plain, digits] = match;
  const host = bracketed ?? plain ?? "";
  const port = Number(digits);
  if (host === "") return no(`is ${quoteText(raw)}, which names no address`);
  if (port > PORT_MAX) return no(`names port ${port}; ports end at ${PORT_MAX}`);
  if (bracketed !== undefined && isIP(host) !== 6)
    return no(`holds an invalid IPv6 address: ${quoteText(host)}`);
  if (bracketed === undefined && !isIPv4(host)) {
    if (!isHostName(host)) return no(`holds an invalid address or host name: ${quoteText(host)}`);
  }
  return { ok: true, value: Object.freeze({ host, port, loopback: hostIsLoopback(host) }) };
}

export const listenKind: Kind<ListenAddress> = {
  name: "address with port",
  range: "an IPv4 address, an IPv6 address in brackets or a host name, then a port, 0 to 65535",
  read: readListen,
  write: formatListen,
};

const SERVERS_MAX = 32;
/** Optional credentials, a host, an optional port. */
const PLACE = String.raw`(?:[^\s,@/]+@)?(?:\[[0-9A-Fa-f:.]+\]|[^\s,@/:[\]]+)(?::[0-9]{1,5})?`;
const NATS_TCP = new RegExp(`^(?:nats|tls)://${PLACE}/?$`);
const WEBSOCKET = new RegExp(`^wss?://${PLACE}(?:/[^\\s,@]*)?$`);
/** Scheme of a URL, replaced by one that `URL` can parse. */
const AS_HTTP = /^[a-z]+:/;
const CREDENTIALS = /\/\/[^\s,/]+@/g;
const NATS_URL_FORM = 'write it as in "nats://127.0.0.1:4222", several separated by commas';

/** Addresses of NATS servers. Credentials (the part before `@`) are never shown. */
export const natsUrlKind: Kind<string> = {
  name: "NATS URL",
  range: "nats://, tls://, ws:// or wss:// and a host; several separated by commas",
  read(raw) {
    const no = (what: string) => refuse(what, NATS_URL_FORM);
    if (typeof raw !== "string") return no("is not a string");
    const urls = raw.split(",").map((url) => url.trim());
    if (urls.length > SERVERS_MAX) return no(`names more than ${SERVERS_MAX} servers`);
    if (!urls.every((url) => NATS_TCP.test(url) || WEBSOCKET.test(url)))
      return no("is not a NATS URL");
    // The connection parses the address with URL, which rejects invalid ports and IPv6 addresses.
    const read = urls.map((url) => URL.parse(url.replace(AS_HTTP, "http:")));
    if (read.includes(null)) return no("names an invalid port or address");
    const logins = read.map((url) => `${url?.username}:${url?.password}`);
    const known = new Set(logins.filter((login) => login !== ":"));
    if (known.size > 1) return no("holds different credentials");
    const sockets = urls.filter((url) => WEBSOCKET.test(url)).length;
    if (sockets === 0 || sockets === urls.length) return { ok: true, value: urls.join(",") };
    return no("mixes TCP (nats://, tls://) and WebSocket (ws://, wss://)");
  },
  write: (value) => value,
  show: (value) => value.replace(CREDENTIALS, "//...@"),
};

/** `sun_path` holds 108 bytes with the NUL at its end (unix(7)). */
const SOCKET_PATH_BYTES_MAX = 107;
const ZMQ_TCP = /^tcp:\/\/(?:\[([^\]]+)\]|([^[\]:/]+)):([0-9]{1,5})$/;

/** `tcp://host:port` or `ipc:///path`. `*` as a host is accepted only for listening. */
export function zmqKind({
  mayListen,
  example,
}: {
  readonly mayListen: boolean;
  readonly example: string;
}): Kind<string> {
  const no = (what: string) => refuse(what, `write it as in "${example}", or "ipc:///run/kv.sock"`);
  return {
    name: "ZMQ endpoint",
    range: "tcp://, a host and a port; or ipc:// and the path of a socket",
    read(raw) {
      if (typeof raw !== "string") return no(`is ${typeName(raw)}, not an endpoint`);
      const is = `is ${quoteText(raw)}`;
      if (raw.startsWith("ipc://")) {
        const path = raw.slice("ipc://".length);
        const bytes = Buffer.byteLength(path);
        const fits = path.startsWith("/") && !path.includes("\0") && bytes <= SOCKET_PATH_BYTES_MAX;
        return fits ? { ok: true, value: raw } : no(`${is}, which does not name a socket`);
      }
      const match = ZMQ_TCP.exec(raw);
      if (match === null) return no(`${is}, which is not a ZMQ endpoint`);
      const [, bracketed, plain = "", digits] = match;
      const port = Number(digits);
      if (port < 1 || port > PORT_MAX) return no(`${is}; ports go from 1 to ${PORT_MAX}`);
      if (plain === "*" && !mayListen) return no(`${is}: an engine has one address`);
      const isPlain = plain === "*" || isIPv4(plain) || isHostName(plain);
      if (bracketed === undefined ? !isPlain : isIP(bracketed) !== 6)
        return no(`${is}, which holds an invalid address or host name`);
      return { ok: true, value: raw };
    },
    write: (endpoint) => endpoint,
  };
}

/** The endpoint of another rank: the port plus the rank. Sockets do not support ranks. */
export function zmqOfRank(endpoint: string, rank: number): string {
  if (rank === 0) return endpoint;
  const [, before, port] = /^(.*:)([0-9]+)$/.exec(endpoint)!;
  return `${before}${Number(port) + rank}`;
}

/** Origins of web pages, or `*` for all of them; an empty string allows none. */
export const originsKind = listKind<string>(
  {
    name: "origin",
    range: 'http:// or https:// with a host and maybe a port; or "*"',
    read(raw) {
      const text = String(raw);
      if (text === "*" || isOrigin(text)) return { ok: true, value: text };
      const instead = 'write it as in "https://chat.example.org", or "*"';
      return refuse(`is ${quoteText(text)}, which is not an origin`, instead);
    },
    write: (origin) => origin,
  },
  { items: "origins", most: 256, empty: "" },
);

/** Whether `text` is an origin as browsers send it: no path, no default port, lower case. */
function isOrigin(text: string): boolean {
  const url = URL.parse(text);
  return url !== null && /^https?:$/.test(url.protocol) && url.origin === text;
}

const EXAMPLE = "http://10.0.0.2:8000";

/** A query or a fragment would break the paths of requests. */
const shape = patternKind<string>({
  name: "URL",
  pattern: /^https?:\/\/[A-Za-z0-9.[\]:_-]{1,255}(?:\/[!"$->@-~]{0,1024})?$/,
  words: "http:// or https://, a host, an optional port and an optional path, without ? and #",
  example: EXAMPLE,
});

/**
 * Link-local addresses as `URL` writes them: 169.254.0.0/16, also as IPv4 in IPv6, and fe80::/10.
 * Cloud hosts serve their credentials there.
 */
const LINK_LOCAL_HOST = /^(?:169\.254\.|\[::ffff:a9fe:|\[fe[89ab][0-9a-f]:)/;

/** The base of a worker's HTTP API. */
export const workerUrlKind: Kind<string> = {
  ...shape,
  read(raw) {
    const read = shape.read(raw);
    if (!read.ok) return read;
    const host = URL.parse(read.value)?.hostname;
    if (host !== undefined && !LINK_LOCAL_HOST.test(host)) return read;
    const what = `is ${quoteText(read.value)}, `;
    const instead = `write a routable address, as in "${EXAMPLE}"`;
    return refuse(
      `${what}${host === undefined ? "which is not a URL" : "a link-local address"}`,
      instead,
    );
  },
};
