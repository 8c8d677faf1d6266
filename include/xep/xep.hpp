/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * xep for C++17: classes that own what the functions of xep/xep.h make, and errors as exceptions.
 *
 * A class owns one object: it can be moved but not copied, and its destructor ends the object. get() returns the
 * pointer for functions that have no method here. Rules and structs are those of xep/xep.h. A group outlives its
 * buffers, and a buffer its handles and requests: declare them in this order.
 */
#ifndef XEP_HPP
#define XEP_HPP

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <xep/xep.h>

namespace xep
{

/** The status that a call returned, with its sentence. */
class Error : public std::runtime_error
{
  public:
    explicit Error(xep_status_t status)
        : std::runtime_error(std::string(xep_status_name(status)) + ": " + xep_last_error()), status_(status)
    {
    }
    xep_status_t status() const noexcept
    {
        return status_;
    }

  private:
    xep_status_t status_;
};

/** Throws Error on an error. Returns true for XEP_OK, false for XEP_INPROGRESS. */
inline bool check(xep_status_t status)
{
    if (status < 0) throw Error(status);
    return status == XEP_OK;
}

/** A params, args or info struct with its size, all else 0. */
template <class Struct> Struct init()
{
    return xep_init_<Struct>();
}

namespace detail
{

struct End {
    void operator()(xep_group_t *group) const noexcept
    {
        (void)xep_group_destroy(group);
    }
    void operator()(xep_buffer_t *buffer) const noexcept
    {
        (void)xep_buffer_destroy(buffer);
    }
    void operator()(xep_handle_t *handle) const noexcept
    {
        xep_handle_release(handle);
    }
    void operator()(xep_request_t *req) const noexcept
    {
        xep_request_free(req);
    }
};

/** begin() writes the new object by its last argument. */
template <class Object, class Begin> std::unique_ptr<Object, End> made(Begin begin)
{
    Object *object = nullptr;
    check(begin(&object));
    return std::unique_ptr<Object, End>(object);
}

} // namespace detail

/** The ranks that work together. Collective. */
class Group
{
  public:
    Group()
        : group_(detail::made<xep_group_t>([](xep_group_t **p) { return xep_group_create(nullptr, p); })), info_(ask())
    {
    }
    explicit Group(const xep_group_params_t &params)
        : group_(detail::made<xep_group_t>([&](xep_group_t **p) { return xep_group_create(&params, p); })), info_(ask())
    {
    }
    std::uint32_t rank() const noexcept
    {
        return info_.rank;
    }
    std::uint32_t nranks() const noexcept
    {
        return info_.nranks;
    }
    void barrier()
    {
        check(xep_group_barrier(get()));
    }
    void abort() noexcept
    {
        xep_group_abort(get());
    }
    xep_group_t *get() const noexcept
    {
        return group_.get();
    }

  private:
    xep_group_info_t ask() const
    {
        auto info = init<xep_group_info_t>();
        check(xep_group_query(get(), &info));
        return info;
    }
    std::unique_ptr<xep_group_t, detail::End> group_;
    xep_group_info_t info_;
};

/** One operation in flight. */
class Request
{
  public:
    Request() = default;
    explicit Request(xep_request_t *req) : req_(req) {}
    /** Whether it is done. */
    bool test()
    {
        return check(xep_request_test(get()));
    }
    void wait()
    {
        check(xep_request_wait(get()));
    }
    void wait_counts()
    {
        check(xep_request_wait_counts(get()));
    }
    xep_request_t *get() const noexcept
    {
        return req_.get();
    }

  private:
    std::unique_ptr<xep_request_t, detail::End> req_;
};

/** Waits until one of the requests is done and returns its index; skips those that are empty. */
inline std::size_t wait_any(const std::vector<Request> &requests)
{
    std::vector<xep_request_t *> reqs;
    std::uint32_t index = 0;
    for (const Request &request : requests) reqs.push_back(request.get());
    check(xep_request_wait_any(reqs.data(), static_cast<std::uint32_t>(reqs.size()), &index));
    return index;
}

/** Rows in memory of the library. */
struct Rows {
    void *base;
    std::size_t stride; /* bytes between rows */
    template <class Element> Element *row(std::uint64_t i) const
    {
        return reinterpret_cast<Element *>(static_cast<char *>(base) + i * stride);
    }
};

/** One dispatch: its routing and the rows it brought. */
class Handle
{
  public:
    explicit Handle(xep_handle_t *handle) : handle_(handle) {}
    /** The received rows; NULL while the dispatch is in flight. */
    const xep_recv_t *recv() const
    {
        const xep_recv_t *recv = nullptr;
        return check(xep_handle_recv(get(), &recv)) ? recv : nullptr;
    }
    Rows combine_input()
    {
        Rows rows{};
        check(xep_handle_combine_input(get(), &rows.base, &rows.stride));
        return rows;
    }
    void combine(const xep_combine_args_t &args)
    {
        check(xep_combine(get(), &args, nullptr));
    }
    Request begin_combine(const xep_combine_args_t &args)
    {
        xep_request_t *req = nullptr;
        check(xep_combine(get(), &args, &req));
        return Request(req);
    }
    xep_handle_t *get() const noexcept
    {
        return handle_.get();
    }

  private:
    std::unique_ptr<xep_handle_t, detail::End> handle_;
};

/** One MoE shape on a group. Collective. */
class Buffer
{
  public:
    Buffer(const Group &group, const xep_buffer_params_t &params)
        : buffer_(
              detail::made<xep_buffer_t>([&](xep_buffer_t **p) { return xep_buffer_create(group.get(), &params, p); }))
    {
    }
    Handle dispatch(const xep_dispatch_args_t &args)
    {
        xep_handle_t *handle = nullptr;
        check(xep_dispatch(get(), &args, &handle, nullptr));
        return Handle(handle);
    }
    std::pair<Handle, Request> begin_dispatch(const xep_dispatch_args_t &args)
    {
        xep_handle_t *handle = nullptr;
        xep_request_t *req = nullptr;
        check(xep_dispatch(get(), &args, &handle, &req));
        return {Handle(handle), Request(req)};
    }
    void reset()
    {
        check(xep_buffer_reset(get()));
    }
    xep_buffer_t *get() const noexcept
    {
        return buffer_.get();
    }

  private:
    std::unique_ptr<xep_buffer_t, detail::End> buffer_;
};

} // namespace xep

#endif
