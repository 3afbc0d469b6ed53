export { type ActiveLoadOptions, createActiveLoad } from "./active-load.ts";
