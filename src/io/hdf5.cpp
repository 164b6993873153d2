// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <hdf5.h>
#include <shard/error.h>
#include <shard/hdf5.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>

namespace shard::io {
namespace {

std::mutex& library_lock() {
  static std::mutex lock;
  return lock;
}

/// Held around every call into HDF5; keeps its error stack off the terminal, and empty afterwards
/// (the library cannot be closed at exit while errors on it refer to files).
class LibraryLock {
 public:
  LibraryLock() : guard_(library_lock()) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }
  ~LibraryLock() { H5Eclear2(H5E_DEFAULT); }
  LibraryLock(const LibraryLock&) = delete;
  LibraryLock& operator=(const LibraryLock&) = delete;

 private:
  std::lock_guard<std::mutex> guard_;
};

/// An HDF5 identifier and the call that releases it.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }  // NOLINT(google-explicit-constructor)
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// The innermost reason on HDF5's error stack, e.g. "truncated file: eof = 512, ...".
std::string innermost_reason() {
  std::string reason;
  const auto take = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    if (error->desc != nullptr && *error->desc != '\0')
      *static_cast<std::string*>(out) = error->desc;
    return 1;  // the first entry of an upward walk is the innermost: stop there
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take, &reason);
  return reason.empty() ? "an unnamed error" : reason;
}

struct ElementType {
  at::ScalarType scalar;
  hid_t memory;
};

/// Tensor element type for a stored type; HDF5 converts byte order while reading.
ElementType element_type(hid_t stored, const std::string& path, const std::string& name) {
  const size_t size = H5Tget_size(stored);
  const H5T_class_t kind = H5Tget_class(stored);
  const bool is_signed = kind == H5T_INTEGER && H5Tget_sign(stored) == H5T_SGN_2;
  if (kind == H5T_INTEGER && size == 1 && !is_signed) return {at::kByte, H5T_NATIVE_UINT8};
  if (is_signed && size == 1) return {at::kChar, H5T_NATIVE_INT8};
  if (is_signed && size == 2) return {at::kShort, H5T_NATIVE_INT16};
  if (is_signed && size == 4) return {at::kInt, H5T_NATIVE_INT32};
  if (is_signed && size == 8) return {at::kLong, H5T_NATIVE_INT64};
  if (kind == H5T_FLOAT && size == 4) return {at::kFloat, H5T_NATIVE_FLOAT};
  if (kind == H5T_FLOAT && size == 8) return {at::kDouble, H5T_NATIVE_DOUBLE};
  raise<FileError>("hdf5", "dataset '", name, "' of '", path, "' has an element type of ", size,
                   " bytes and class ", static_cast<int>(kind),
                   "; expected uint8, int8 to int64, float32 or float64. Convert the file.");
}

void require_file(const std::string& path) {
  check<FileError>(std::filesystem::exists(path), "hdf5", "no file '", path,
                   "'. Check the path or fetch the data.");
  check<FileError>(std::filesystem::is_regular_file(path), "hdf5", "cannot read '", path,
                   "': got a folder or device; expected an HDF5 file. Check the path.");
  check<FileError>(H5Fis_hdf5(path.c_str()) > 0, "hdf5", "'", path,
                   "' is not an HDF5 file or cannot be read: got ",
                   std::filesystem::file_size(path), " bytes. Check the path or fetch it again.");
}

hid_t open_file(const std::string& path) {
  require_file(path);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  check<FileError>(file >= 0, "hdf5", "cannot open '", path, "': got ", innermost_reason(),
                   ". The file is damaged or incomplete: fetch it again.");
  return file;
}

}  // namespace

struct Hdf5Dataset::State {
  State(const std::string& path_, const std::string& name_)
      : path(path_),
        name(name_),
        file(open_file(path_), H5Fclose),
        dataset(H5Dopen2(file, name_.c_str(), H5P_DEFAULT), H5Dclose) {
    check<FileError>(dataset.ok(), "hdf5", "no dataset '", name, "' in '", path, "': got ",
                     innermost_reason(), ". Check that this is the right file.");
    read_metadata();
  }

  void read_metadata() {
    const Handle type(H5Dget_type(dataset), H5Tclose);
    element = element_type(type, path, name);
    const Handle space(H5Dget_space(dataset), H5Sclose);
    const int rank = H5Sget_simple_extent_ndims(space);
    check<FileError>(rank >= 0, "hdf5", "dataset '", name, "' of '", path, "' has no shape");
    std::vector<hsize_t> extent(static_cast<size_t>(rank));
    H5Sget_simple_extent_dims(space, extent.data(), nullptr);
    sizes.assign(extent.begin(), extent.end());
  }

  std::string path;
  std::string name;
  Handle file;
  Handle dataset;
  ElementType element{};
  std::vector<int64_t> sizes;
};

namespace {

/// One range for every dim, checked against the dataset's sizes.
std::vector<Range> complete(std::vector<Range> ranges, c10::IntArrayRef sizes) {
  check<SpecMismatch>(ranges.size() <= sizes.size(), "hdf5", "got ", ranges.size(),
                      " ranges; expected at most ", sizes.size(), ", one a dim.");
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (dim == ranges.size()) ranges.push_back({0, sizes[dim], 1});
    const Range& range = ranges[dim];
    const bool ok =
        range.step >= 1 && 0 <= range.begin && range.begin <= range.end && range.end <= sizes[dim];
    check<SpecMismatch>(ok, "hdf5", "got range ", range.begin, ":", range.end, ":", range.step,
                        " of dim ", dim, "; expected it inside 0:", sizes[dim], ".");
  }
  return ranges;
}

int64_t length(const Range& range) {
  return (range.end - range.begin + range.step - 1) / range.step;
}

bool select(hid_t space, const std::vector<Range>& ranges) {
  std::vector<hsize_t> start, stride, count;
  for (const Range& range : ranges) {
    start.push_back(static_cast<hsize_t>(range.begin));
    stride.push_back(static_cast<hsize_t>(range.step));
    count.push_back(static_cast<hsize_t>(length(range)));
  }
  return H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), stride.data(), count.data(),
                             nullptr) >= 0;
}

/// Closing is a call into HDF5 too, whichever thread drops the last copy.
template <class State>
struct LockedDelete {
  void operator()(const State* state) const {
    const LibraryLock lock;
    delete state;
  }
};

}  // namespace

Hdf5Dataset::Hdf5Dataset(const std::string& path, const std::string& name) {
  const LibraryLock lock;
  auto state = std::make_unique<const State>(path, name);
  state_ = std::shared_ptr<const State>(state.release(), LockedDelete<State>{});
}

c10::IntArrayRef Hdf5Dataset::sizes() const { return state_->sizes; }
at::ScalarType Hdf5Dataset::dtype() const { return state_->element.scalar; }
const std::string& Hdf5Dataset::path() const { return state_->path; }

at::Tensor Hdf5Dataset::read(const std::vector<Range>& some_ranges) const {
  const auto ranges = complete(some_ranges, state_->sizes);
  std::vector<int64_t> shape;
  for (const Range& range : ranges) shape.push_back(length(range));
  at::Tensor result = at::empty(shape, state_->element.scalar);
  if (result.numel() == 0) return result;

  const LibraryLock lock;
  const Handle space(H5Dget_space(state_->dataset), H5Sclose);
  const std::vector<hsize_t> extent(shape.begin(), shape.end());
  const Handle memory(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr),
                      H5Sclose);
  const bool ok = (ranges.empty() || select(space, ranges)) &&
                  H5Dread(state_->dataset, state_->element.memory, memory, space, H5P_DEFAULT,
                          result.data_ptr()) >= 0;
  check<FileError>(ok, "hdf5", "cannot read dataset '", state_->name, "' of '", state_->path,
                   "': got ", innermost_reason(), ". The file is damaged: fetch it again.");
  return result;
}

void Hdf5Dataset::require_sizes(c10::IntArrayRef expected) const {
  check<FileError>(sizes() == expected, "hdf5", "dataset '", state_->name, "' of '", state_->path,
                   "' has shape ", sizes(), "; expected ", expected,
                   ". Check that this is the right file.");
}

bool has_hdf5() { return true; }

}  // namespace shard::io
