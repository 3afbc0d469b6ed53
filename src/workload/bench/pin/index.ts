export {
  benchPin,
  PIN_DEPTHS,
  PIN_TIERS,
  type PinBenchOptions,
  type PinRow,
  type PinTier,
  pinBlockBytes,
} from "./pin-bench.ts";
