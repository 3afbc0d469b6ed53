import { systemClock } from "../../../src/core/index.ts";
import { measured } from "../../../src/peers/index.ts";
import type { TransportMaker } from "./contract-kit.ts";
import { maker as quic } from "./quic-maker.ts";

const nobody = () => {};

export const maker: TransportMaker = {
  name: "measured",
  make: (parts) =>
    measured(quic.make(parts), systemClock, {
      dialled: nobody,
      called: nobody,
      pulled: nobody,
      answered: nobody,
      lent: nobody,
    }),
};
