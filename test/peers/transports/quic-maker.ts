import { QuicTransport } from "../../../src/peers/transports/quic/index.ts";
import type { TransportMaker } from "./contract-kit.ts";

export const maker: TransportMaker = {
  name: "quic",
  make({ trust, clock, log, native, limits }) {
    return new QuicTransport({
      ...{ trust, clock, log, native },
      limits: {
        linksMax: limits.linksMax,
        connectionRequestsMax: limits.requestsMax,
        stallMs: limits.progressMs,
        handshakeMs: limits.handshakeMs,
        silentMs: 2_000,
        keepAliveMs: 500,
        expiryCheckMs: limits.progressMs / 5,
      },
    });
  },
};
