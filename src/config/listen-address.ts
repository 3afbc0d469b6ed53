import { isIP, isIPv4 } from "node:net";
import type { Kind, Read } from "./kinds.ts";
import { typeName } from "./kinds.ts";
import { quoteText } from "./problems.ts";

/** Where a server listens. */
export interface ListenAddress {
  /** An IP address or a host name, without brackets. */
  readonly host: string;
  /** 0: whatever port is free. */
  readonly port: number;
  /** Whether only this machine can reach it. */
  readonly loopback: boolean;
}

const HOST_NAME = /^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$/;
const PORT_MAX = 65_535;

/** Digits and points alone are an address, or a mistake in one. */
export function isHostName(text: string): boolean {
  return HOST_NAME.test(text) && !/^[0-9.]+$/.test(text);
}

/** What to write where an address is link-local. */
export const LINK_LOCAL_INSTEAD =
  'use an address that hosts of all networks know it by, as in "10.0.0.1" or "fd00::1"';
const LINK_LOCAL = /^fe[89ab][0-9a-f]:/i;

/**
 * Whether it is good within one network alone (`fe80::/10`), or names a network card (`%eth0`):
 * each host calls its own differently.
 */
export function isLinkLocal(host: string): boolean {
  return LINK_LOCAL.test(host) || (host.includes(":") && host.includes("%"));
}

/** Whether only the machine itself is meant. */
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
  const instead = 'write address and port, as in "127.0.0.1:7171" or "[::1]:7171"';
  const refuse = (what: string) => ({ ok: false as const, what, instead });
  if (typeof raw !== "string") return refuse(`is ${typeName(raw)}, not an address`);
  const match = /^(?:\[([0-9A-Fa-f:.]+)\]|([^[\]:]*)):([0-9]{1,5})$/.exec(raw);
  if (match === null) return refuse(`is ${quoteText(raw)}, which is no address with a port`);
  const [, bracketed, plain, digits] = match;
  const host = bracketed ?? plain ?? "";
  const port = Number(digits);
  if (host === "") return refuse(`is ${quoteText(raw)}, which names no address`);
  if (port > PORT_MAX) return refuse(`names port ${port}; ports end at ${PORT_MAX}`);
  if (bracketed !== undefined && isIP(host) !== 6)
    return refuse(`holds no IPv6 address: ${quoteText(host)}`);
  if (bracketed === undefined && !isIPv4(host)) {
    if (!isHostName(host)) return refuse(`holds no address or host name: ${quoteText(host)}`);
  }
  return { ok: true, value: Object.freeze({ host, port, loopback: hostIsLoopback(host) }) };
}

export const listenKind: Kind<ListenAddress> = {
  name: "address with port",
  range: "an IPv4 address, an IPv6 address in brackets or a host name, then a port, 0 to 65535",
  read: readListen,
  write: formatListen,
};
