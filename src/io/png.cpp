// SPDX-License-Identifier: Apache-2.0
#include <png.h>
#include <shard/atomic_file.h>
#include <shard/error.h>
#include <shard/png.h>

#include <memory>
#include <string>
#include <vector>

namespace shard::io {
namespace {

// libpng reports errors by a callback that must not return. It is compiled C that keeps no state in
// its frames besides the structs freed by the deleter, and Debian builds it with unwind tables, but
// the standard does not promise that an exception passes: so it encodes into memory, where only
// libpng's own errors can occur, and those end in longjmp as libpng documents. Files are written
// afterwards.
void append(png_structp png, png_bytep data, size_t size) {
  auto* bytes = static_cast<std::string*>(png_get_io_ptr(png));
  bytes->append(reinterpret_cast<const char*>(data), size);
}

/// Encodes prepared rows. Holds no objects with destructors, since libpng may jump out of it.
bool encode(png_structp png, png_infop info, std::string* bytes, png_bytepp rows, png_uint_32 width,
            png_uint_32 height, int color_type) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_write_fn(png, bytes, append, nullptr);
  png_set_IHDR(png, info, width, height, 8, color_type, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_rows(png, info, rows);
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  return true;
}

std::vector<png_bytep> row_pointers(const at::Tensor& image) {
  std::vector<png_bytep> rows;
  auto* data = static_cast<png_bytep>(image.data_ptr());
  for (int64_t row = 0; row < image.size(0); ++row) rows.push_back(data + row * image.stride(0));
  return rows;
}

std::string encode_png(const at::Tensor& image) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  check<FileError>(png != nullptr, "png", "cannot start libpng");
  png_infop info = png_create_info_struct(png);
  std::vector<png_bytep> rows = row_pointers(image);
  std::string bytes;
  const bool ok = info != nullptr &&
                  encode(png, info, &bytes, rows.data(), static_cast<png_uint_32>(image.size(1)),
                         static_cast<png_uint_32>(image.size(0)),
                         image.dim() == 3 ? PNG_COLOR_TYPE_RGB : PNG_COLOR_TYPE_GRAY);
  png_destroy_write_struct(&png, &info);
  check<FileError>(ok, "png", "libpng cannot encode a picture of size ", image.sizes());
  return bytes;
}

}  // namespace

void write_png(const std::string& path, const at::Tensor& image) {
  const bool is_rgb = image.dim() == 3 && image.size(2) == 3;
  const bool ok = image.defined() && (is_rgb || image.dim() == 2) && image.numel() > 0 &&
                  image.scalar_type() == at::kByte && image.is_cpu();
  check<SpecMismatch>(ok, "png", "cannot write '", path, "': got ", image.toString(), " of size ",
                      image.sizes(), "; expected CPU uint8 (height, width, 3) or (height, width).");
  write_file_atomically(path, encode_png(image.contiguous()));
}

}  // namespace shard::io
