import { openRdma, type Rdma } from "../../../src/native/index.ts";
import { RdmaTransport } from "../../../src/peers/index.ts";
import type { TransportMaker } from "./contract-kit.ts";
import { LINK_SETTINGS, rdmaLimitsOf, verbsOptions } from "./rdma-kit.ts";

/** Uses the library of `HEARTH_TEST_VERBS` and this host's devices, or the stand-in. */
export const maker: TransportMaker = {
  name: "rdma",
  make({ trust, clock, log, limits, native }) {
    let rdma: Rdma | null = null;
    const transport = new RdmaTransport({
      ...{ trust, clock, log, rails: 1, settings: LINK_SETTINGS },
      rdmaOf: (region) => {
        rdma = openRdma(native, verbsOptions(region));
        return rdma;
      },
      limits: rdmaLimitsOf(limits),
    });
    // Devices are closed by their owner, after the transport.
    const close = transport[Symbol.asyncDispose].bind(transport);
    transport[Symbol.asyncDispose] = async () => {
      await close();
      await rdma?.[Symbol.asyncDispose]();
    };
    return transport;
  },
};
