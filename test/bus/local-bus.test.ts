import { createLocalBus, LocalHub } from "../../src/bus/index.ts";
import { busContract } from "./bus-contract.ts";

busContract("a hub in the process", async () => {
  const hub = new LocalHub();
  return {
    open: (basics) => createLocalBus(hub, basics),
    goDown: async () => hub.goDown(),
    comeUp: async () => hub.comeUp(),
    payloadBytesMax: hub.payloadBytesMax,
    [Symbol.asyncDispose]: async () => undefined,
  };
});
