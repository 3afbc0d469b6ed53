import type { Kind } from "./kinds.ts";

const SERVERS_MAX = 32;
/** Credentials may stand before the host, a port behind it. */
const PLACE = String.raw`(?:[^\s,@/]+@)?(?:\[[0-9A-Fa-f:.]+\]|[^\s,@/:[\]]+)(?::[0-9]{1,5})?`;
const TCP = new RegExp(`^(?:nats|tls)://${PLACE}/?$`);
const WEBSOCKET = new RegExp(`^wss?://${PLACE}(?:/[^\\s,@]*)?$`);
/** What of a URL the broker's address is read from, behind a scheme that `URL` knows. */
const AS_HTTP = /^[a-z]+:/;
const CREDENTIALS = /\/\/[^\s,/]+@/g;
const INSTEAD = 'write it as in "nats://127.0.0.1:4222", several with commas between them';

/** Addresses of NATS servers. What stands before an `@` is never shown. */
export const natsUrlKind: Kind<string> = {
  name: "NATS URL",
  range: "nats://, tls://, ws:// or wss:// and a host; several with commas between them",
  read(raw) {
    const refuse = (what: string) => ({ ok: false, what, instead: INSTEAD }) as const;
    if (typeof raw !== "string") return refuse("is not a string");
    const urls = raw.split(",").map((url) => url.trim());
    if (urls.length > SERVERS_MAX) return refuse(`names more than ${SERVERS_MAX} servers`);
    if (!urls.every((url) => TCP.test(url) || WEBSOCKET.test(url))) return refuse("is no NATS URL");
    // The connection reads them with URL, which knows what no port and no IPv6 address is.
    const read = urls.map((url) => URL.parse(url.replace(AS_HTTP, "http:")));
    if (read.includes(null)) return refuse("names no port or address that there can be");
    const logins = read.map((url) => `${url?.username}:${url?.password}`);
    const known = new Set(logins.filter((login) => login !== ":"));
    if (known.size > 1) return refuse("holds different credentials");
    const sockets = urls.filter((url) => WEBSOCKET.test(url)).length;
    if (sockets === 0 || sockets === urls.length) return { ok: true, value: urls.join(",") };
    return refuse("mixes TCP (nats://, tls://) and WebSocket (ws://, wss://)");
  },
  write: (value) => value,
  show: (value) => value.replace(CREDENTIALS, "//...@"),
};
