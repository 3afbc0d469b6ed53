import { openLanes } from "../../../src/native/index.ts";
import { StreamTransport } from "../../../src/peers/transports/stream/index.ts";
import type { TransportMaker } from "./contract-kit.ts";

export const maker: TransportMaker = {
  name: "stream",
  make({ trust, clock, log, limits, native }) {
    const { linksMax, requestsMax, progressMs, handshakeMs } = limits;
    return new StreamTransport({
      ...{ trust, clock, log, lanes: 2, lanesPort: 0 },
      ciphers: ["aegis-128l", "aes-128-gcm"],
      openLanes: (region) => openLanes(native, { region, threads: 1, socketBytes: 0 }),
      limits: {
        ...{ linksMax, handshakeMs, setUpMs: handshakeMs, connectionRequestsMax: requestsMax },
        ...{ stallMs: progressMs, progressMs: progressMs / 5 },
        ...{ pingMs: progressMs / 2, silentMs: 3 * progressMs, expiryCheckMs: progressMs / 5 },
      },
    });
  },
};
