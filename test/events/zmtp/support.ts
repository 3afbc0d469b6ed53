import { type Clock, type Random, seededRandom, systemClock } from "../../../src/core/index.ts";
import {
  connectDealer,
  connectSubscriber,
  type ZmtpDealer,
  type ZmtpLimits,
  type ZmtpMessage,
  type ZmtpSubscriber,
} from "../../../src/events/zmtp/index.ts";

export const clock: Clock = systemClock;
export const random: Random = seededRandom(7);

/** Redials at once: tests wait for conditions, not for redials. */
export const LIMITS: Partial<ZmtpLimits> = { redialFirstMs: 5, redialMaxMs: 40 };

export function bytes(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

export function texts(message: ZmtpMessage): string[] {
  return message.map((frame) => Buffer.from(frame).toString());
}

export type Collected<Socket> = Socket & { readonly messages: ZmtpMessage[] };

export function collect(
  endpoint: string,
  topics: readonly string[] = [""],
  limits: Partial<ZmtpLimits> = {},
): Collected<ZmtpSubscriber> {
  const messages: ZmtpMessage[] = [];
  const subscriber = connectSubscriber({
    endpoint,
    topics,
    clock,
    random,
    limits: { ...LIMITS, ...limits },
    onMessage: (message) => messages.push(message),
  });
  return Object.assign(subscriber, { messages });
}

export function ask(endpoint: string, limits: Partial<ZmtpLimits> = {}): Collected<ZmtpDealer> {
  const messages: ZmtpMessage[] = [];
  const dealer = connectDealer({
    endpoint,
    clock,
    random,
    limits: { ...LIMITS, ...limits },
    onMessage: (message) => messages.push(message),
  });
  return Object.assign(dealer, { messages });
}

/** A scripted TCP client that records its input. */
export async function rawClient(port: number) {
  const heard: Buffer[] = [];
  const state = { isClosed: false };
  const socket = await Bun.connect({
    hostname: "127.0.0.1",
    port,
    socket: {
      data: (_socket, chunk) => void heard.push(Buffer.from(chunk)),
      close: () => {
        state.isClosed = true;
      },
    },
  });
  return {
    state,
    socket,
    get heard() {
      return Buffer.concat(heard);
    },
    [Symbol.dispose]: () => socket.terminate(),
  };
}

export function portOf(endpoint: string): number {
  return Number(endpoint.split(":").at(-1));
}

/** A whole greeting of ZMTP 3.`minor` with the NULL mechanism. */
export function greeting(minor = 0, major = 3, mechanism = "NULL"): Uint8Array {
  const whole = new Uint8Array(64);
  whole.set([0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, major, minor]);
  whole.set(bytes(mechanism), 12);
  return whole;
}

/** READY of a socket of this type, as sent by libzmq. */
export function ready(type: string): Uint8Array {
  const body = Buffer.concat([
    bytes("\u0005READY\u000bSocket-Type"),
    Uint8Array.of(0, 0, 0, type.length),
    bytes(type),
  ]);
  return Buffer.concat([Uint8Array.of(4, body.length), body]);
}
