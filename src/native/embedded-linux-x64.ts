import path from "../../dist/native/linux-x64/libhearth.so" with { type: "file" };

/** Path of the native library inside the executable. */
export default path;
